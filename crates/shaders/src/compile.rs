//! Compiles GLSL to SPIR-V, once per tier that a shader declares.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::names::cut_function_names;
use glslang::error::{GlslangError, GlslangErrorLog};
use glslang::include::{IncludeHandler, IncludeResult, IncludeType};
use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage, SourceLanguage,
    SpirvVersion, Target, VulkanVersion,
};

/// The tiers, by number; ARCHITECTURE.md defines them.
const TIERS: [&str; 4] = ["T0", "T1", "T2", "T3"];

/// A compiled shader.
#[derive(Debug)]
pub struct Module {
    /// SPIR-V.
    pub words: Vec<u32>,
    /// Warnings from glslang, usually empty.
    pub warnings: String,
}

/// The tiers of a shader, lowest first, from its line `#pragma tiers(T0, T1)`.
pub fn tiers(source: &str) -> Result<Vec<u32>, String> {
    const FORM: &str = "write one line like `#pragma tiers(T0, T1)`, lowest first, T0 to T3";
    let mut pragmas = source.lines().enumerate().filter_map(|(index, line)| {
        let list = line.trim().strip_prefix("#pragma tiers")?;
        Some((index + 1, list))
    });
    let (line, list) = pragmas.next().ok_or_else(|| format!("no `#pragma tiers`: {FORM}"))?;
    if let Some((again, _)) = pragmas.next() {
        return Err(format!("`#pragma tiers` on line {line} and again on line {again}: {FORM}"));
    }
    let list = list.trim().strip_prefix('(').and_then(|list| list.strip_suffix(')'));
    let tier = |name: &str| (0..).zip(TIERS).find(|(_, tier)| *tier == name.trim()).map(|(tier, _)| tier);
    let tiers: Option<Vec<u32>> = list.and_then(|list| list.split(',').map(tier).collect());
    tiers
        .filter(|tiers| tiers.is_sorted_by(|lower, higher| lower < higher))
        .ok_or_else(|| format!("malformed `#pragma tiers` on line {line}: {FORM}"))
}

/// Compiles `source` with `TIER` defined. `#include "…"` searches `includes` in order.
///
/// The error is glslang's log, with `path` in place of the source string number.
pub fn compile(path: &str, source: &str, tier: u32, includes: &[&Path]) -> Result<Module, String> {
    let compiler = Compiler::acquire().ok_or("glslang could not be initialised")?;
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version: VulkanVersion::Vulkan1_3, spirv_version: SpirvVersion::SPIRV1_6 },
        version_profile: None,
        messages: ShaderMessage::DEFAULT,
    };
    let source = ShaderSource::from(source);
    let tier = tier.to_string();
    let defines = [("TIER", Some(tier.as_str()))];
    let mut resolver = Includes { folders: includes };
    let input =
        ShaderInput::new(&source, ShaderStage::Compute, &options, Some(&defines), Some(&mut resolver));
    let shader =
        input.and_then(|input| compiler.create_shader(input)).map_err(|error| tidy(&log(error), path))?;
    let words = shader.compile().map_err(|error| tidy(&log(error), path))?;
    if words.is_empty() {
        // glslang keeps the reason in a log that the binding does not expose.
        return Err(format!("ERROR: {path}: glslang generated no code"));
    }
    let words = cut_function_names(&words).map_err(|error| format!("ERROR: {path}: {error}"))?;
    Ok(Module { words, warnings: tidy(&shader.get_log(), path) })
}

/// The log alone, where there is one: the error's own text would add an empty debug log.
fn log(error: GlslangError) -> String {
    match error {
        GlslangError::PreprocessError(GlslangErrorLog { log, .. })
        | GlslangError::ParseError(GlslangErrorLog { log, .. })
        | GlslangError::LinkError(GlslangErrorLog { log, .. }) => log,
        other => other.to_string(),
    }
}

/// Replaces the source string number by the file's name, and removes duplicate lines: the parser repeats the
/// preprocessor's warnings.
fn tidy(log: &str, path: &str) -> String {
    let mut seen = HashSet::new();
    let lines: Vec<&str> = log.lines().map(str::trim_end).filter(|line| seen.insert(*line)).collect();
    let log = lines.join("\n").replace("ERROR: 0:", &format!("ERROR: {path}:"));
    log.replace("WARNING: 0:", &format!("WARNING: {path}:")).trim().to_owned()
}

struct Includes<'a> {
    folders: &'a [&'a Path],
}

impl IncludeHandler for Includes<'_> {
    fn include(&mut self, kind: IncludeType, header: &str, _: &str, _: usize) -> Option<IncludeResult> {
        // glslang retries a failed "x" as <x>, which must fail too.
        if kind == IncludeType::System {
            return None;
        }
        self.folders.iter().find_map(|folder| {
            let path = folder.join(header);
            let data = fs::read_to_string(&path).ok()?;
            Some(IncludeResult { name: path.display().to_string(), data })
        })
    }
}

//! How to let an APU map more system memory.
//!
//! The kernel's memory manager for GPUs, TTM, lets GPUs pin at most half of RAM, and amdgpu sizes its GTT
//! pool accordingly. On a machine dedicated to one large model this default is too small. The size is fixed
//! when the modules load, so changing it takes a kernel parameter and a reboot. The parameter's unit (pages)
//! and module (`ttm`, or `amdttm` under AMD's packaged driver) are easy to get wrong, so this module computes
//! them.

use std::path::Path;

use serde::Serialize;

use crate::{AmdGpu, read};

/// TTM counts CPU pages, and every APU has an x86 CPU.
const PAGE: u64 = 4 << 10;
const GIB: u64 = 1 << 30;
/// RAM reserved for a desktop, its page cache and our own process.
const SYSTEM_MINIMUM: u64 = 4 * GIB;
/// Share of RAM reserved for the system on larger machines.
const SYSTEM_SHARE: u64 = 8;
/// Advice is given only if it gains more than this share of the target, so that a deliberately chosen limit
/// is left alone.
const WORTHWHILE_SHARE: u64 = 8;
/// The first kernel on which `ttm.pages_limit` alone is known to size the pool. On older kernels amdgpu takes
/// half of RAM regardless of TTM's limit. Setting `amdgpu.gttsize` to the same size is harmless; from Linux
/// 6.15 on it causes a warning.
const FOLLOWS_TTM: (u32, u32) = (6, 8);

/// The kernel module that manages GPU memory; its name prefixes the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TtmModule {
    /// The kernel's own module.
    Ttm,
    /// The copy in AMD's packaged driver (DKMS), which ignores the parameters of `ttm`.
    AmdTtm,
}

impl TtmModule {
    /// The module's name, the prefix of its parameters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttm => "ttm",
            Self::AmdTtm => "amdttm",
        }
    }
}

/// The kernel settings that determine the size of the GTT pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GttControls {
    /// The module whose parameters apply.
    pub module: TtmModule,
    /// Pages of 4 KiB that the module allows GPUs to pin.
    pub pages_limit: Option<u64>,
    /// Major and minor version of the kernel.
    pub kernel: Option<(u32, u32)>,
    /// Parameters on the kernel's command line that size the pool already, for instance
    /// `amdgpu.gttsize=32768`.
    pub command_line: Vec<String>,
}

/// How to raise the GTT pool of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GttAdvice {
    /// Bytes that the GPU may map now.
    pub current: u64,
    /// Bytes that it could map while leaving enough memory for the system.
    pub target: u64,
    /// Parameters to add to the kernel's command line.
    pub parameters: String,
    /// Parameters to remove from it, because they override or contradict [`Self::parameters`].
    pub obsolete: Vec<String>,
    /// The steps for GRUB, one per line.
    pub instructions: String,
}

pub(crate) fn gtt_controls(root: &Path) -> GttControls {
    let module = if root.join("sys/module/amdttm").is_dir() { TtmModule::AmdTtm } else { TtmModule::Ttm };
    let command_line = read::text(root.join("proc/cmdline")).unwrap_or_default();
    GttControls {
        module,
        pages_limit: read::number(root.join("sys/module").join(module.name()).join("parameters/pages_limit")),
        kernel: read::text(root.join("proc/sys/kernel/osrelease")).as_deref().and_then(kernel_version),
        command_line: command_line
            .split_whitespace()
            .filter(|word| sizes_gtt(word))
            .map(str::to_owned)
            .collect(),
    }
}

/// Major and minor of `6.8.0-45-generic`; the minor may be followed by any non-digit (`6.1-rc3`).
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn sizes_gtt(parameter: &str) -> bool {
    let name = parameter.split('=').next().unwrap_or_default();
    matches!(
        name,
        "amdgpu.gttsize"
            | "ttm.pages_limit"
            | "ttm.page_pool_size"
            | "amdttm.pages_limit"
            | "amdttm.page_pool_size"
    )
}

/// The advice for `gpu` on a machine with `mem_total` bytes of RAM, not counting the carve-out.
///
/// The target leaves the system an eighth of RAM or 4 GiB, whichever is more. `None` if the pool is within an
/// eighth of the target, if its size is unknown, and for a discrete GPU: its GTT is memory behind the PCI
/// bus, and more of it does not improve speed.
pub fn gtt_advice(gpu: &AmdGpu, mem_total: u64, controls: &GttControls) -> Option<GttAdvice> {
    let current = gpu.gtt_total?;
    let usable = mem_total.saturating_sub(SYSTEM_MINIMUM.max(mem_total / SYSTEM_SHARE));
    let target = usable / GIB * GIB;
    if gpu.integrated == Some(false) || current >= target - target / WORTHWHILE_SHARE {
        return None;
    }
    let parameters = parameters(target, controls);
    let obsolete: Vec<String> = controls
        .command_line
        .iter()
        .filter(|old| !parameters.split(' ').any(|new| new == *old))
        .cloned()
        .collect();
    let instructions = instructions(gpu, target, &parameters, &obsolete, controls);
    Some(GttAdvice { current, target, parameters, obsolete, instructions })
}

fn parameters(target: u64, controls: &GttControls) -> String {
    let (module, pages) = (controls.module.name(), target / PAGE);
    // The pool of freed pages stays at half of RAM regardless of the limit. Pages that a model frees beyond
    // it would have to be allocated again, page by page, for the next model.
    let ttm = format!("{module}.pages_limit={pages} {module}.page_pool_size={pages}");
    let old_kernel = controls.kernel.is_some_and(|kernel| kernel < FOLLOWS_TTM);
    // AMD's packaged driver is newer than the kernel it is built for.
    if old_kernel && controls.module == TtmModule::Ttm {
        format!("{ttm} amdgpu.gttsize={}", target >> 20)
    } else {
        ttm
    }
}

fn instructions(
    gpu: &AmdGpu,
    target: u64,
    parameters: &str,
    obsolete: &[String],
    controls: &GttControls,
) -> String {
    let mut edit =
        format!("In /etc/default/grub, inside the quotes of GRUB_CMDLINE_LINUX_DEFAULT, add: {parameters}");
    if !obsolete.is_empty() {
        edit += &format!(" and remove: {}", obsolete.join(" "));
    }
    let mut steps = vec![edit];
    if hidden_gttsize(gpu, controls) {
        steps.push(
            "Remove the line that sets gttsize, which overrides these: grep -r gttsize /etc/modprobe.d"
                .into(),
        );
    }
    // Fedora keeps the command line in a file per kernel, which grub2-mkconfig does not update.
    let remove = if obsolete.is_empty() {
        String::new()
    } else {
        format!(" --remove-args=\"{}\"", obsolete.join(" "))
    };
    steps.push(format!(
        "Debian, Ubuntu: sudo update-grub. openSUSE: sudo grub2-mkconfig -o /boot/grub2/grub.cfg. Arch: sudo \
         grub-mkconfig -o /boot/grub/grub.cfg. Fedora, without editing the file: sudo grubby \
         --update-kernel=ALL{remove} --args=\"{parameters}\""
    ));
    let card = &gpu.card;
    steps.push(format!(
        "Reboot. cat /sys/class/drm/{card}/device/mem_info_gtt_total should then print {target}."
    ));
    let numbered = steps.iter().enumerate().map(|(at, step)| format!("{}. {step}", at + 1));
    numbered.collect::<Vec<_>>().join("\n")
}

/// Whether `gttsize` is set elsewhere than on the command line. Only root may read the parameter itself, but
/// on kernels that follow TTM's limit, a pool clearly smaller than that limit implies it.
fn hidden_gttsize(gpu: &AmdGpu, controls: &GttControls) -> bool {
    let (Some(pages), Some(pool), Some(kernel)) = (controls.pages_limit, gpu.gtt_total, controls.kernel)
    else {
        return false;
    };
    let allowed = pages.saturating_mul(PAGE);
    let shown = controls.command_line.iter().any(|parameter| parameter.starts_with("amdgpu.gttsize="));
    !shown && kernel >= FOLLOWS_TTM && pool < allowed - allowed / WORTHWHILE_SHARE
}

#[cfg(test)]
#[path = "gtt_tests.rs"]
mod tests;

//! Generates the Rust side of a kernel as text: one module against the interface in `gpu::shader`.

use crate::reflect::{Access, Constant, Interface, Kind, LocalSize, Member, Scalar};

/// The module of one kernel. Its tiers must [`agree`](crate::reflect::agree).
pub fn module(kernel: &str, path: &str, tiers: &[(u32, Interface)]) -> String {
    let Some((_, interface)) = tiers.first() else { return String::new() };
    let mut items = vec![push(kernel, interface), constants(kernel, &interface.constants)];
    items.extend(tiers.iter().map(|(tier, interface)| shader(kernel, *tier, interface)));
    items.push(tier_list(kernel, tiers));
    format!("/// Generated from `{path}`.\npub mod {kernel} {{\n{}}}\n", indent(&items.join("\n")))
}

fn push(kernel: &str, interface: &Interface) -> String {
    let size = interface.push_size;
    if interface.push.is_empty() {
        return format!(
            "\
/// `{kernel}.comp` has no push constants.
#[derive(Clone, Debug)]
pub struct Push;

impl gpu::PushConstants for Push {{
    const SIZE: u32 = {size};

    fn encode(&self, _: &mut gpu::PushWriter) {{}}
}}
"
        );
    }
    let fields: String = interface.push.iter().map(push_field).collect();
    let writes: String = interface.push.iter().map(push_write).collect();
    format!(
        "\
/// Push constants of `{kernel}.comp`.
#[derive(Clone, Debug)]
pub struct Push {{
{fields}}}

impl gpu::PushConstants for Push {{
    const SIZE: u32 = {size};

    fn encode(&self, writer: &mut gpu::PushWriter) {{
{writes}    }}
}}
"
    )
}

fn push_field(member: &Member) -> String {
    let (doc, field_type) = match member.kind {
        Kind::Buffer(Access::Read) => ("Read by the shader".to_owned(), "gpu::Address"),
        Kind::Buffer(Access::Write) => ("Written by the shader".to_owned(), "gpu::Address"),
        Kind::Buffer(Access::ReadWrite) => ("Read and written by the shader".to_owned(), "gpu::Address"),
        Kind::Word(scalar) => (format!("`{}` in the shader", scalar.glsl()), rust_type(scalar)),
    };
    format!("    /// {doc}.\n    pub {}: {field_type},\n", member.name)
}

fn push_write(member: &Member) -> String {
    let Member { name, offset, kind } = member;
    let call = match kind {
        Kind::Buffer(access) => format!("buffer({offset}, &self.{name}, gpu::Access::{access:?})"),
        Kind::Word(scalar) => format!("word({offset}, {})", to_word(*scalar, name)),
    };
    format!("        writer.{call};\n")
}

fn constants(kernel: &str, constants: &[Constant]) -> String {
    if constants.is_empty() {
        return format!(
            "\
/// `{kernel}.comp` has no specialisation constants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Constants;

impl gpu::SpecConstants for Constants {{
    fn values(&self) -> Vec<u32> {{
        Vec::new()
    }}
}}
"
        );
    }
    let each = |line: fn(&Constant) -> String| constants.iter().map(line).collect::<String>();
    let fields = each(|constant| {
        let Constant { id, name, scalar, .. } = constant;
        let (glsl, rust) = (scalar.glsl(), rust_type(*scalar));
        format!("    /// `{name}`: `{glsl}`, constant {id}.\n    pub {}: {rust},\n", field(constant))
    });
    let values = constants.iter().map(|constant| to_word(constant.scalar, &field(constant)));
    let values = list("vec![", values.collect(), "]", 8);
    // clippy requires Default to be derived where possible.
    let zero = constants.iter().all(|constant| constant.default == 0);
    let (derived, default) = if zero { ("Default, ", String::new()) } else { ("", default_impl(constants)) };
    format!(
        "\
/// Specialisation constants of `{kernel}.comp`.
#[derive(Clone, Copy, Debug, {derived}PartialEq)]
pub struct Constants {{
{fields}}}

{default}impl gpu::SpecConstants for Constants {{
    fn values(&self) -> Vec<u32> {{
{values}
    }}
}}
"
    )
}

/// The defaults that the shader declares.
fn default_impl(constants: &[Constant]) -> String {
    let fields = constants.iter().map(|constant| {
        let value = literal(constant.scalar, constant.default);
        format!("{}: {value}", field(constant))
    });
    let fields = list("Self { ", fields.collect(), " }", 8);
    // Keep the shader's literal even where Rust has a named constant for it.
    let float = constants.iter().any(|constant| constant.scalar == Scalar::Float);
    let allow = if float { "    #[allow(clippy::approx_constant)]\n" } else { "" };
    format!(
        "\
impl Default for Constants {{
{allow}    fn default() -> Self {{
{fields}
    }}
}}

"
    )
}

fn shader(kernel: &str, tier: u32, interface: &Interface) -> String {
    let ids: Vec<String> = interface.constants.iter().map(|constant| constant.id.to_string()).collect();
    let size = interface.local_size.map(|size| match size {
        LocalSize::Fixed(size) => format!("gpu::LocalSize::Fixed({size})"),
        LocalSize::Constant(index) => format!("gpu::LocalSize::Constant({index})"),
    });
    format!(
        "\
/// `{kernel}.comp` at tier T{tier}.
pub static T{tier}: gpu::Shader = gpu::Shader {{
    name: \"{kernel}.t{tier}\",
    spirv: include_bytes!(\"{kernel}.t{tier}.spv\"),
    push_size: {},
    constant_ids: &[{}],
    local_size: [{}],
}};
",
        interface.push_size,
        ids.join(", "),
        size.join(", "),
    )
}

fn tier_list(kernel: &str, tiers: &[(u32, Interface)]) -> String {
    let list: Vec<String> = tiers.iter().map(|(tier, _)| format!("({tier}, &T{tier})")).collect();
    format!(
        "\
/// All tiers of `{kernel}.comp`, lowest first.
pub static TIERS: &[(u32, &gpu::Shader)] = &[{}];
",
        list.join(", ")
    )
}

/// Constants are upper case in shaders, fields lower case in Rust.
fn field(constant: &Constant) -> String {
    constant.name.to_lowercase()
}

fn rust_type(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::Bool => "bool",
        Scalar::Uint => "u32",
        Scalar::Int => "i32",
        Scalar::Float => "f32",
    }
}

/// The expression that converts a field to its 32-bit word.
fn to_word(scalar: Scalar, field: &str) -> String {
    match scalar {
        Scalar::Bool => format!("u32::from(self.{field})"),
        Scalar::Uint => format!("self.{field}"),
        Scalar::Int => format!("self.{field} as u32"),
        Scalar::Float => format!("self.{field}.to_bits()"),
    }
}

fn literal(scalar: Scalar, bits: u32) -> String {
    match scalar {
        Scalar::Bool => (bits != 0).to_string(),
        Scalar::Uint => bits.to_string(),
        Scalar::Int => (bits as i32).to_string(),
        // Debug prints the shortest digits that parse back to the same value, but no valid literal for NaN
        // and infinity.
        Scalar::Float if f32::from_bits(bits).is_finite() => format!("{:?}", f32::from_bits(bits)),
        Scalar::Float => format!("f32::from_bits({bits:#010x})"),
    }
}

/// A comma-separated list as rustfmt writes it: on one line if that fits, otherwise one item per line. `indent`
/// is that of the list in its module, which is itself indented once more.
fn list(open: &str, items: Vec<String>, close: &str, indent: usize) -> String {
    const MAX_WIDTH: usize = 110;
    let margin = " ".repeat(indent);
    let line = format!("{margin}{open}{}{close}", items.join(", "));
    if line.len() + 4 <= MAX_WIDTH {
        return line;
    }
    let items: String = items.iter().map(|item| format!("{margin}    {item},\n")).collect();
    format!("{margin}{}\n{items}{margin}{}", open.trim_end(), close.trim_start())
}

fn indent(text: &str) -> String {
    let indented = |line: &str| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") };
    text.lines().map(indented).collect()
}

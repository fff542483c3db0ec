//! Reflects the host-visible interface of a shader: push constants, specialisation constants, workgroup size.
//!
//! Works on the tables of a parsed module. Anything that `gpu::shader` cannot represent is an error that names the
//! offending item.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use crate::spirv::{self, Module, Type, storage};

/// Guaranteed by every Vulkan 1.3 device (`maxPushConstantsSize`); equals `gpu::MAX_PUSH_BYTES`.
const MAX_PUSH_BYTES: u32 = 128;

/// The host-visible interface of a shader.
#[derive(Debug, PartialEq)]
pub struct Interface {
    /// Members of the push-constant block, in declaration order.
    pub push: Vec<Member>,
    /// Bytes up to the end of the last member; 0 without a block.
    pub push_size: u32,
    /// Specialisation constants by ascending id.
    pub constants: Vec<Constant>,
    /// Workgroup size.
    pub local_size: [LocalSize; 3],
}

/// One member of the push-constant block.
#[derive(Debug, PartialEq)]
pub struct Member {
    /// Name in the shader.
    pub name: String,
    /// Offset in bytes.
    pub offset: u32,
    /// Type.
    pub kind: Kind,
}

/// What a push-constant member holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A number or a flag.
    Word(Scalar),
    /// The address of a buffer.
    Buffer(Access),
}

/// A type passed as one 32-bit word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// `bool`.
    Bool,
    /// `uint`.
    Uint,
    /// `int`.
    Int,
    /// `float`.
    Float,
}

/// How the shader may access a buffer, from its `readonly` and `writeonly` qualifiers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    /// `readonly`.
    Read,
    /// `writeonly`.
    Write,
    /// Neither qualifier.
    ReadWrite,
}

/// A specialisation constant.
#[derive(Debug, PartialEq)]
pub struct Constant {
    /// `constant_id`.
    pub id: u32,
    /// Name in the shader.
    pub name: String,
    /// Type.
    pub scalar: Scalar,
    /// The default value's 32 bits; `bool` as 0 or 1.
    pub default: u32,
}

/// One dimension of the workgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LocalSize {
    /// A number in the shader.
    Fixed(u32),
    /// Index into [`Interface::constants`].
    Constant(usize),
}

/// Reads the interface of a compute shader.
pub fn reflect(words: &[u32]) -> Result<Interface, String> {
    let module = Module::parse(words)?;
    reject_descriptors(&module)?;
    let push = push(&module)?;
    let end = push.iter().map(|member| member.offset.saturating_add(member.kind.bytes())).max();
    let push_size = end.unwrap_or(0);
    if push_size > MAX_PUSH_BYTES {
        return Err(format!(
            "the push constants take {push_size} bytes, but Vulkan guarantees only {MAX_PUSH_BYTES}: move some into a buffer"
        ));
    }
    let constants = constants(&module)?;
    let local_size = local_size(&module, &constants)?;
    Ok(Interface { push, push_size, constants, local_size })
}

/// All tiers share one Rust struct of push constants and one of specialisation constants, so all must declare
/// the same.
pub fn agree(tiers: &[(u32, Interface)]) -> Result<(), String> {
    let Some(((lowest, base), others)) = tiers.split_first() else { return Ok(()) };
    for (tier, other) in others {
        let difference = difference("push constant", &base.push, &other.push)
            .or_else(|| difference("specialisation constant", &base.constants, &other.constants));
        if let Some((what, left, right)) = difference {
            return Err(format!(
                "the tiers disagree on a {what}: {left} in T{lowest}, {right} in T{tier}; declare the same in all tiers"
            ));
        }
    }
    Ok(())
}

/// The first difference between two lists: the item kind and the two items.
fn difference<T: PartialEq + fmt::Display>(what: &str, a: &[T], b: &[T]) -> Option<(String, String, String)> {
    let index = (0..a.len().max(b.len())).find(|&index| a.get(index) != b.get(index))?;
    let show = |item: Option<&T>| item.map_or("nothing".to_owned(), T::to_string);
    Some((what.to_owned(), show(a.get(index)), show(b.get(index))))
}

fn reject_descriptors(module: &Module) -> Result<(), String> {
    const DESCRIPTORS: [u32; 3] = [storage::UNIFORM_CONSTANT, storage::UNIFORM, storage::STORAGE_BUFFER];
    let Some(variable) = module.variables.iter().find(|variable| DESCRIPTORS.contains(&variable.storage))
    else {
        return Ok(());
    };
    // A block without an instance name is identified by its type name.
    let block = match module.types.get(&variable.pointer) {
        Some(Type::Pointer { pointee, .. }) => module.name(*pointee),
        _ => None,
    };
    let name = module.name(variable.id).or(block).unwrap_or("?");
    Err(format!("`{name}` is a descriptor binding: pass a buffer_reference as push constant instead"))
}

fn push(module: &Module) -> Result<Vec<Member>, String> {
    let mut blocks = module.variables.iter().filter(|variable| variable.storage == storage::PUSH_CONSTANT);
    let Some(block) = blocks.next() else { return Ok(Vec::new()) };
    if blocks.next().is_some() {
        return Err("malformed SPIR-V: two push-constant blocks".to_owned());
    }
    let Some(&Type::Pointer { pointee, .. }) = module.types.get(&block.pointer) else {
        return Err("malformed SPIR-V: the push-constant block has no type".to_owned());
    };
    let Some(Type::Struct(members)) = module.types.get(&pointee) else {
        return Err("malformed SPIR-V: the push-constant block is not a struct".to_owned());
    };
    (0..)
        .zip(members)
        .map(|(index, &member_type)| push_member(module, (pointee, index), member_type))
        .collect()
}

fn push_member(module: &Module, member: spirv::Member, member_type: u32) -> Result<Member, String> {
    let nameless = || format!("malformed SPIR-V: push constant {} has no name", member.1);
    let name = module.member_names.get(&member).ok_or_else(nameless)?.clone();
    let unplaced = || format!("malformed SPIR-V: push constant `{name}` has no offset");
    let offset = *module.member_offsets.get(&member).ok_or_else(unplaced)?;
    let buffer = match module.types.get(&member_type) {
        Some(&Type::Pointer { storage: storage::PHYSICAL_STORAGE_BUFFER, pointee }) => {
            access(module, pointee)
        }
        _ => None,
    };
    let word = scalar(module, member_type).map(Kind::Word);
    let kind = word.or(buffer.map(Kind::Buffer)).ok_or_else(|| {
        format!("push constant `{name}` must be a 32-bit uint, int or float, or a buffer_reference")
    })?;
    Ok(Member { name, offset, kind })
}

/// glslang puts the block's `readonly` and `writeonly` on each of its members.
fn access(module: &Module, block: u32) -> Option<Access> {
    let Some(Type::Struct(members)) = module.types.get(&block) else { return None };
    let all = |set: &HashSet<_>| (0..).zip(members).all(|(index, _)| set.contains(&(block, index)));
    Some(match (all(&module.non_writable), all(&module.non_readable)) {
        (true, _) => Access::Read,
        (_, true) => Access::Write,
        _ => Access::ReadWrite,
    })
}

fn scalar(module: &Module, id: u32) -> Option<Scalar> {
    match module.types.get(&id)? {
        Type::Bool => Some(Scalar::Bool),
        Type::Uint => Some(Scalar::Uint),
        Type::Int => Some(Scalar::Int),
        Type::Float => Some(Scalar::Float),
        Type::Struct(_) | Type::Pointer { .. } => None,
    }
}

/// One id can have several targets: for `local_size_x_id` glslang adds unnamed constants to the named one.
fn constants(module: &Module) -> Result<Vec<Constant>, String> {
    let mut by_id: BTreeMap<u32, Option<Constant>> = BTreeMap::new();
    for (&target, &id) in &module.spec_ids {
        let declared = by_id.entry(id).or_default();
        let Some(name) = module.name(target) else { continue };
        // glslang accepts `constant_id` on an expression, where SPIR-V allows no SpecId.
        let expression =
            || format!("constant {id} `{name}`: make its default a literal, or leave out constant_id");
        let constant = module.constants.get(&target).ok_or_else(expression)?;
        let unsupported = || format!("constant {id} `{name}`: use bool or 32-bit uint, int or float");
        let scalar = scalar(module, constant.constant_type).ok_or_else(unsupported)?;
        *declared = Some(Constant { id, name: name.to_owned(), scalar, default: constant.bits });
    }
    let undeclared = |id| {
        format!(
            "local_size refers to constant {id}, which is not declared: add `layout(constant_id = {id}) const uint NAME = …;`"
        )
    };
    by_id.into_iter().map(|(id, constant)| constant.ok_or_else(|| undeclared(id))).collect()
}

fn local_size(module: &Module, constants: &[Constant]) -> Result<[LocalSize; 3], String> {
    let dimension = |id: u32| -> Result<LocalSize, String> {
        let Some(spec_id) = module.spec_ids.get(&id) else {
            let fixed =
                module.constants.get(&id).ok_or("malformed SPIR-V: a workgroup size is not a constant")?;
            return Ok(LocalSize::Fixed(fixed.bits));
        };
        let index = constants.iter().position(|constant| constant.id == *spec_id);
        let index = index.ok_or("malformed SPIR-V: a workgroup size has no constant")?;
        if constants[index].scalar != Scalar::Uint {
            return Err(format!("constant `{}` is a workgroup size: make it uint", constants[index].name));
        }
        Ok(LocalSize::Constant(index))
    };
    match (module.size_ids, module.fixed_size) {
        (Some([x, y, z]), _) => Ok([dimension(x)?, dimension(y)?, dimension(z)?]),
        (None, Some(size)) => Ok(size.map(LocalSize::Fixed)),
        (None, None) => Err("malformed SPIR-V: no workgroup size".to_owned()),
    }
}

impl Kind {
    /// Size within the block; a buffer is its 64-bit address.
    fn bytes(self) -> u32 {
        match self {
            Kind::Word(_) => 4,
            Kind::Buffer(_) => 8,
        }
    }
}

impl Scalar {
    /// The GLSL name of the type.
    pub fn glsl(self) -> &'static str {
        match self {
            Scalar::Bool => "bool",
            Scalar::Uint => "uint",
            Scalar::Int => "int",
            Scalar::Float => "float",
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Word(scalar) => scalar.glsl().to_owned(),
            Kind::Buffer(access) => format!("{access:?} buffer"),
        };
        write!(f, "`{}` ({kind} at byte {})", self.name, self.offset)
    }
}

impl fmt::Display for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({} {}, default bits {:#x})", self.name, self.scalar.glsl(), self.id, self.default)
    }
}

//! Parses a SPIR-V module into the tables that reflection needs.
//!
//! Opcode and enum numbers are those of the SPIR-V 1.6 specification. Malformed modules give an error, never
//! a panic: a backtrace would hide the name of the shader.

use std::collections::{BTreeMap, HashMap, HashSet};

mod op {
    pub const NAME: u32 = 5;
    pub const MEMBER_NAME: u32 = 6;
    pub const ENTRY_POINT: u32 = 15;
    pub const EXECUTION_MODE: u32 = 16;
    pub const TYPE_BOOL: u32 = 20;
    pub const TYPE_INT: u32 = 21;
    pub const TYPE_FLOAT: u32 = 22;
    pub const TYPE_STRUCT: u32 = 30;
    pub const TYPE_POINTER: u32 = 32;
    pub const CONSTANT: u32 = 43;
    pub const CONSTANT_COMPOSITE: u32 = 44;
    pub const SPEC_CONSTANT_TRUE: u32 = 48;
    pub const SPEC_CONSTANT_FALSE: u32 = 49;
    pub const SPEC_CONSTANT: u32 = 50;
    pub const SPEC_CONSTANT_COMPOSITE: u32 = 51;
    pub const FUNCTION: u32 = 54;
    pub const FUNCTION_END: u32 = 56;
    pub const FUNCTION_CALL: u32 = 57;
    pub const VARIABLE: u32 = 59;
    pub const DECORATE: u32 = 71;
    pub const MEMBER_DECORATE: u32 = 72;
    pub const EXECUTION_MODE_ID: u32 = 331;
}

mod decoration {
    pub const SPEC_ID: u32 = 1;
    pub const BUILT_IN: u32 = 11;
    pub const NON_WRITABLE: u32 = 24;
    pub const NON_READABLE: u32 = 25;
    pub const OFFSET: u32 = 35;
}

/// Storage classes of variables and pointers.
pub mod storage {
    pub const UNIFORM_CONSTANT: u32 = 0;
    pub const UNIFORM: u32 = 2;
    pub const PUSH_CONSTANT: u32 = 9;
    pub const STORAGE_BUFFER: u32 = 12;
    pub const PHYSICAL_STORAGE_BUFFER: u32 = 5349;
}

const MAGIC: u32 = 0x0723_0203;
const HEADER_WORDS: usize = 5;
const MODE_LOCAL_SIZE: u32 = 17;
const MODE_LOCAL_SIZE_ID: u32 = 38;
const BUILT_IN_WORKGROUP_SIZE: u32 = 25;

/// Types that an interface may use; scalars are 32-bit only. Other types are not recorded.
pub enum Type {
    Bool,
    Uint,
    Int,
    Float,
    /// Types of the members.
    Struct(Vec<u32>),
    Pointer {
        storage: u32,
        pointee: u32,
    },
}

/// A variable, global or function-local.
pub struct Variable {
    pub id: u32,
    pub pointer: u32,
    pub storage: u32,
}

/// A scalar constant, specialisable or not; for a 64-bit one, its low word.
pub struct Constant {
    pub constant_type: u32,
    pub bits: u32,
}

/// A struct's id and the index of a member.
pub type Member = (u32, u32);

/// The tables of a module, by result id unless noted otherwise.
#[derive(Default)]
pub struct Module {
    names: HashMap<u32, String>,
    pub member_names: HashMap<Member, String>,
    pub member_offsets: HashMap<Member, u32>,
    pub non_writable: HashSet<Member>,
    pub non_readable: HashSet<Member>,
    pub types: HashMap<u32, Type>,
    pub constants: HashMap<u32, Constant>,
    /// `SpecId` decorations. Ordered, so that errors are deterministic.
    pub spec_ids: BTreeMap<u32, u32>,
    pub variables: Vec<Variable>,
    /// Workgroup size as literals (`LocalSize`).
    pub fixed_size: Option<[u32; 3]>,
    /// Workgroup size as constants (`LocalSizeId`, or its predecessor, the built-in `WorkgroupSize`).
    pub size_ids: Option<[u32; 3]>,
    workgroup_size: Option<u32>,
    /// Functions that the entry point or a call references, and those with a body: a truncated module lacks
    /// some.
    referenced_functions: HashSet<u32>,
    functions: HashSet<u32>,
    current_function: Option<u32>,
}

impl Module {
    /// Reads a whole module.
    pub fn parse(words: &[u32]) -> Result<Self, String> {
        if words.len() < HEADER_WORDS || words[0] != MAGIC {
            return Err("not a SPIR-V module".to_owned());
        }
        let mut module = Self::default();
        let mut rest = &words[HEADER_WORDS..];
        while let Some(&first) = rest.first() {
            let length = (first >> 16) as usize;
            if length == 0 || length > rest.len() {
                return Err("malformed SPIR-V: an instruction runs past the end".to_owned());
            }
            let (instruction, tail) = rest.split_at(length);
            module.read(first & 0xffff, Operands(&instruction[1..]))?;
            rest = tail;
        }
        if module.referenced_functions.is_empty() {
            return Err("malformed SPIR-V: no entry point".to_owned());
        }
        if !module.referenced_functions.is_subset(&module.functions) {
            return Err("malformed SPIR-V: a function is missing or truncated".to_owned());
        }
        Ok(module)
    }

    /// The name in the source. Objects that glslang generates have none, or an empty one.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.names.get(&id).map(String::as_str).filter(|name| !name.is_empty())
    }

    fn read(&mut self, opcode: u32, operands: Operands<'_>) -> Result<(), String> {
        let word = |index| operands.word(index);
        match opcode {
            op::NAME => _ = self.names.insert(word(0)?, operands.text(1)?),
            op::MEMBER_NAME => _ = self.member_names.insert((word(0)?, word(1)?), operands.text(2)?),
            op::DECORATE => match word(1)? {
                decoration::SPEC_ID => _ = self.spec_ids.insert(word(0)?, word(2)?),
                decoration::BUILT_IN if word(2)? == BUILT_IN_WORKGROUP_SIZE => {
                    self.workgroup_size = Some(word(0)?)
                }
                _ => {}
            },
            op::MEMBER_DECORATE => {
                let member = (word(0)?, word(1)?);
                match word(2)? {
                    decoration::NON_WRITABLE => _ = self.non_writable.insert(member),
                    decoration::NON_READABLE => _ = self.non_readable.insert(member),
                    decoration::OFFSET => _ = self.member_offsets.insert(member, word(3)?),
                    _ => {}
                }
            }
            op::EXECUTION_MODE if word(1)? == MODE_LOCAL_SIZE => self.fixed_size = Some(operands.three(2)?),
            op::EXECUTION_MODE_ID if word(1)? == MODE_LOCAL_SIZE_ID => {
                self.size_ids = Some(operands.three(2)?)
            }
            op::TYPE_BOOL => _ = self.types.insert(word(0)?, Type::Bool),
            op::TYPE_INT if word(1)? == 32 => {
                let signed = word(2)? != 0;
                self.types.insert(word(0)?, if signed { Type::Int } else { Type::Uint });
            }
            op::TYPE_FLOAT if word(1)? == 32 => _ = self.types.insert(word(0)?, Type::Float),
            op::TYPE_STRUCT => _ = self.types.insert(word(0)?, Type::Struct(operands.0[1..].to_vec())),
            op::TYPE_POINTER => {
                self.types.insert(word(0)?, Type::Pointer { storage: word(1)?, pointee: word(2)? });
            }
            op::CONSTANT | op::SPEC_CONSTANT => {
                self.constants.insert(word(1)?, Constant { constant_type: word(0)?, bits: word(2)? });
            }
            op::SPEC_CONSTANT_TRUE | op::SPEC_CONSTANT_FALSE => {
                let bits = u32::from(opcode == op::SPEC_CONSTANT_TRUE);
                self.constants.insert(word(1)?, Constant { constant_type: word(0)?, bits });
            }
            // The specification puts decorations before the constants that they decorate.
            op::CONSTANT_COMPOSITE | op::SPEC_CONSTANT_COMPOSITE if Some(word(1)?) == self.workgroup_size => {
                self.size_ids = Some(operands.three(2)?);
            }
            op::VARIABLE => {
                self.variables.push(Variable { pointer: word(0)?, id: word(1)?, storage: word(2)? });
            }
            op::ENTRY_POINT => _ = self.referenced_functions.insert(word(1)?),
            op::FUNCTION_CALL => _ = self.referenced_functions.insert(word(2)?),
            op::FUNCTION => self.current_function = Some(word(1)?),
            op::FUNCTION_END => self.functions.extend(self.current_function.take()),
            _ => {}
        }
        Ok(())
    }
}

/// An instruction's words after the first.
struct Operands<'a>(&'a [u32]);

impl Operands<'_> {
    fn word(&self, index: usize) -> Result<u32, String> {
        self.0.get(index).copied().ok_or_else(|| "malformed SPIR-V: an instruction is too short".to_owned())
    }

    fn three(&self, from: usize) -> Result<[u32; 3], String> {
        Ok([self.word(from)?, self.word(from + 1)?, self.word(from + 2)?])
    }

    /// A literal string: UTF-8 in little-endian words, terminated by a zero byte.
    fn text(&self, from: usize) -> Result<String, String> {
        let words = self.0.get(from..).unwrap_or_default();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let end = bytes
            .iter()
            .position(|&byte| byte == 0)
            .ok_or("malformed SPIR-V: a name has no terminating zero")?;
        String::from_utf8(bytes[..end].to_vec())
            .map_err(|_| "malformed SPIR-V: a name is not UTF-8".to_owned())
    }
}

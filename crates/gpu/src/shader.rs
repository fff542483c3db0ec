//! The seam between a compiled shader and the host.
//!
//! Nothing here is written by hand per kernel: the `kernels` build script reflects each SPIR-V module and emits a
//! [`Shader`], a struct that implements [`PushConstants`] and one that implements [`SpecConstants`]. What a dispatch
//! reads and writes is taken from the `readonly`/`writeonly` words in the shader itself, so that a barrier can only be
//! forgotten by lying in the shader.

use crate::memory::View;

/// One compiled shader module, embedded in the binary.
#[derive(Debug)]
pub struct Shader {
    /// Kernel and tier, as in `gemv.t1`: the name in errors, profiles and tables.
    pub name: &'static str,
    /// The SPIR-V words as little-endian bytes.
    pub spirv: &'static [u8],
    /// Bytes of the push-constant block; 0 when there is none.
    pub push_size: u32,
    /// Identifiers of the specialisation constants, in the order in which [`SpecConstants::values`] lists them.
    pub constant_ids: &'static [u32],
    /// Workgroup size, each dimension fixed or taken from a specialisation constant.
    pub local_size: [LocalSize; 3],
}

impl Shader {
    /// Threads of a workgroup with these constants, one for each of [`Shader::constant_ids`].
    pub fn threads(&self, constants: &[u32]) -> u32 {
        self.local_size.iter().fold(1, |product: u32, size| {
            product.saturating_mul(match *size {
                LocalSize::Fixed(n) => n,
                LocalSize::Constant(index) => constants[index],
            })
        })
    }
}

/// One dimension of a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalSize {
    /// Written as a number in the shader.
    Fixed(u32),
    /// `local_size_x_id`: the index into [`Shader::constant_ids`] (not the id itself).
    Constant(usize),
}

/// How a dispatch touches a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `readonly` in the shader.
    Read,
    /// `writeonly` in the shader.
    Write,
    /// Neither word in the shader.
    ReadWrite,
}

/// A buffer member of a push-constant block: a view, or nothing where the specialisation constants make the shader leave
/// it alone.
#[derive(Clone, Debug)]
pub struct Address(Option<View>);

impl Address {
    /// No buffer: the shader must not touch it.
    pub const NONE: Address = Address(None);
}

impl<V: Into<View>> From<V> for Address {
    fn from(view: V) -> Address {
        Address(Some(view.into()))
    }
}

/// A push-constant block with its buffers. Implemented by generated code only.
pub trait PushConstants {
    /// Bytes of the block.
    const SIZE: u32;
    /// Writes every member at the offset that the shader gave it.
    fn encode(&self, writer: &mut PushWriter);
}

/// Values for a shader's specialisation constants. Implemented by generated code only.
pub trait SpecConstants {
    /// One 32-bit word a constant, in the order of [`Shader::constant_ids`]: `bool` as 0 or 1, `f32` by its bits.
    fn values(&self) -> Vec<u32>;
}

/// Constants that are already words, for code that treats all shaders alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawConstants(pub Vec<u32>);

impl SpecConstants for RawConstants {
    fn values(&self) -> Vec<u32> {
        self.0.clone()
    }
}

/// The largest push-constant block that every Vulkan 1.3 device accepts.
pub const MAX_PUSH_BYTES: usize = 128;

/// Collects the bytes of a push-constant block and the buffers it points to.
#[derive(Debug)]
pub struct PushWriter {
    pub(crate) bytes: [u8; MAX_PUSH_BYTES],
    pub(crate) buffers: Vec<(View, Access)>,
}

impl PushWriter {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; MAX_PUSH_BYTES], buffers: Vec::new() }
    }

    /// Writes a device address and notes how the shader touches the buffer behind it.
    pub fn buffer(&mut self, offset: usize, address: &Address, access: Access) {
        if let Some(view) = &address.0 {
            self.bytes[offset..offset + 8].copy_from_slice(&view.address().to_le_bytes());
            self.buffers.push((view.clone(), access));
        }
    }

    /// Writes one 32-bit member: integers as they are, floats by `to_bits`.
    pub fn word(&mut self, offset: usize, value: u32) {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
}

//! The interface between a compiled shader and the host.
//!
//! Implementations are generated, not written per kernel: the `shaders` crate reflects each SPIR-V
//! module and emits a [`Shader`], a struct that implements [`PushConstants`] and one that implements
//! [`SpecConstants`]. The accesses of a dispatch come from the `readonly` and `writeonly` qualifiers in the
//! shader itself, so a barrier can be missing only if a qualifier is wrong.

use crate::{access::Access, view::View};

/// One compiled shader module, embedded in the binary.
#[derive(Debug)]
pub struct Shader {
    /// Kernel and tier, such as `gemv.t1`. Used in errors, profiles and tables.
    pub name: &'static str,
    /// The SPIR-V words as little-endian bytes.
    pub spirv: &'static [u8],
    /// Size of the push-constant block in bytes; 0 if there is none.
    pub push_size: u32,
    /// Ids of the specialisation constants, in the order of [`SpecConstants::values`].
    pub constant_ids: &'static [u32],
    /// Workgroup size, each dimension fixed or taken from a specialisation constant.
    pub local_size: [LocalSize; 3],
}

impl Shader {
    /// Workgroup size in threads for these constants, one per entry of [`Shader::constant_ids`].
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
    /// A number in the shader.
    Fixed(u32),
    /// `local_size_x_id`: the index into [`Shader::constant_ids`] (not the id itself).
    Constant(usize),
}

/// A buffer member of a push-constant block: a view, or none if the specialisation constants disable its use.
#[derive(Clone, Debug)]
pub struct Address(Option<View>);

impl Address {
    /// No buffer: the shader must not access it.
    pub const NONE: Address = Address(None);
}

impl<V: Into<View>> From<V> for Address {
    fn from(view: V) -> Address {
        Address(Some(view.into()))
    }
}

/// A push-constant block with its buffers. Implemented only by generated code.
pub trait PushConstants {
    /// Size of the block in bytes.
    const SIZE: u32;
    /// Writes every member at its offset in the shader's block.
    fn encode(&self, writer: &mut PushWriter);
}

/// Values for a shader's specialisation constants. Implemented only by generated code.
pub trait SpecConstants {
    /// One 32-bit word per constant, in the order of [`Shader::constant_ids`]: `bool` as 0 or 1, `f32` by its
    /// bits.
    fn values(&self) -> Vec<u32>;
}

/// Constants given as words, for code that is generic over shaders.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawConstants(pub Vec<u32>);

impl SpecConstants for RawConstants {
    fn values(&self) -> Vec<u32> {
        self.0.clone()
    }
}

/// Maximum size of a push-constant block, in bytes. Every Vulkan device supports this size.
pub const MAX_PUSH_BYTES: usize = 128;

/// Collects the bytes of a push-constant block and the buffers that it refers to.
#[derive(Debug)]
pub struct PushWriter {
    pub(crate) bytes: [u8; MAX_PUSH_BYTES],
    pub(crate) buffers: Vec<(View, Access)>,
}

impl PushWriter {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; MAX_PUSH_BYTES], buffers: Vec::new() }
    }

    /// Writes a device address and records how the shader accesses that buffer.
    pub fn buffer(&mut self, offset: usize, address: &Address, access: Access) {
        if let Some(view) = &address.0 {
            self.bytes[offset..offset + 8].copy_from_slice(&view.address().to_le_bytes());
            self.buffers.push((view.clone(), access));
        }
    }

    /// Writes one 32-bit member; floats as their bits.
    pub fn word(&mut self, offset: usize, value: u32) {
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }
}

//! The host's memory as the shim tiles see it.

/// Buffers of the host at addresses of the NPU.
#[derive(Debug, Clone, Default)]
pub struct HostMemory {
    buffers: Vec<Buffer>,
    /// Addresses of the command's arguments.
    arguments: Vec<u64>,
}

#[derive(Debug, Clone)]
struct Buffer {
    address: u64,
    bytes: Vec<u8>,
}

/// Distance of the buffers that [`HostMemory::from_arguments`] makes: accesses past one hit none.
const SPACING: u64 = 1 << 36;

impl HostMemory {
    /// No memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// One buffer per argument.
    pub fn from_arguments(arguments: Vec<Vec<u8>>) -> Self {
        let mut host = Self::new();
        for (bytes, index) in arguments.into_iter().zip(1u64..) {
            host.map(index * SPACING, bytes);
            host.add_argument(index * SPACING);
        }
        host
    }

    /// Adds a buffer.
    pub fn map(&mut self, address: u64, bytes: Vec<u8>) {
        self.buffers.push(Buffer { address, bytes });
    }

    /// Adds an argument by its address.
    pub fn add_argument(&mut self, address: u64) {
        self.arguments.push(address);
    }

    /// The bytes of the buffer at `address`.
    pub fn buffer(&self, address: u64) -> Option<&[u8]> {
        let buffer = self.buffers.iter().find(|buffer| buffer.address == address);
        buffer.map(|buffer| buffer.bytes.as_slice())
    }

    /// The bytes of argument `index`.
    pub fn argument(&self, index: usize) -> Option<&[u8]> {
        self.buffer(*self.arguments.get(index)?)
    }

    pub(super) fn arguments(&self) -> &[u64] {
        &self.arguments
    }

    /// `len` bytes at `address`.
    pub(super) fn bytes(&mut self, address: u64, len: u64) -> Option<&mut [u8]> {
        self.buffers.iter_mut().find_map(|buffer| {
            let offset = usize::try_from(address.checked_sub(buffer.address)?).ok()?;
            buffer.bytes.get_mut(offset..)?.get_mut(..usize::try_from(len).ok()?)
        })
    }
}

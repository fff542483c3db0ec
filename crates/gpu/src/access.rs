//! How a command accesses a buffer.

/// How a dispatch, copy or fill accesses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `readonly` in the shader.
    Read,
    /// `writeonly` in the shader.
    Write,
    /// Neither qualifier in the shader.
    ReadWrite,
}

//! A buffer allocated from an arena, with host access where its memory can be mapped.

use std::ops::Range;

use crate::{
    error::{Error, Result},
    view::View,
};

/// A range of device memory that no other buffer overlaps. Shaders see it through a [`View`].
#[derive(Debug)]
pub struct Buffer {
    view: View,
}

impl Buffer {
    /// `view` must not overlap any other buffer's view.
    pub(crate) fn new(view: View) -> Self {
        Self { view }
    }

    /// The whole buffer, as shaders and copies see it.
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// A part of the buffer.
    pub fn slice(&self, range: Range<u64>) -> Result<View> {
        self.view.slice(range)
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.view.len()
    }

    /// Always false: a buffer has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Whether the CPU can read and write the buffer directly.
    pub fn is_mapped(&self) -> bool {
        self.view.block.mapped.is_some()
    }

    /// The mapped bytes. Fails while a submission that uses the buffer's block is running. While the bytes
    /// are borrowed, no program that uses the block may be submitted, or the GPU reads half-written data.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        let pointer = self.pointer()?;
        // SAFETY: the block stays mapped as long as it lives. This buffer's range lies within it, belongs to
        // this buffer alone, and is borrowed mutably through `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(pointer, self.view.len() as usize) })
    }

    /// Copies `data` into the buffer at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        self.view.slice(offset..offset.saturating_add(len))?;
        self.bytes_mut()?[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Copies bytes from the buffer at `offset` into `data`.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.view.slice(offset..offset.saturating_add(data.len() as u64))?;
        let pointer = self.pointer()?;
        // SAFETY: the range was checked to lie within this buffer, which is mapped. `data` is a Rust slice
        // and cannot overlap device memory unless it was borrowed from this buffer, which `&self` excludes.
        unsafe { std::ptr::copy_nonoverlapping(pointer.add(offset as usize), data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// The whole buffer as values of one type.
    pub fn read_vec<T: bytemuck::Pod>(&self) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); self.view.len() as usize / size_of::<T>()];
        self.read(0, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn pointer(&self) -> Result<*mut u8> {
        self.view.block.check_idle()?;
        let mapped = self.view.block.mapped.ok_or_else(|| Error::InvalidUse {
            what: "buffer".into(),
            reason: "the CPU cannot map this memory: use a staging ring or another kind of memory".into(),
        })?;
        // SAFETY: the view's offset lies within the mapped block.
        Ok(unsafe { mapped.as_ptr().add(self.view.range().start as usize) })
    }
}

impl From<&Buffer> for View {
    fn from(buffer: &Buffer) -> View {
        buffer.view()
    }
}

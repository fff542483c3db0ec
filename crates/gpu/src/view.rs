//! A range of device memory as shaders and copies see it.

use std::{ops::Range, sync::Arc};

use crate::{
    block::Block,
    device_inner::DeviceInner,
    error::{Error, Result},
};

/// A range of device memory: an address and a length. Keeps the memory alive. Cheap to clone.
#[derive(Clone, Debug)]
pub struct View {
    pub(crate) block: Arc<Block>,
    offset: u64,
    len: u64,
}

impl View {
    /// `range` must lie within the block.
    pub(crate) fn new(block: Arc<Block>, range: Range<u64>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= block.size);
        Self { block, offset: range.start, len: range.end - range.start }
    }

    /// The device address of the first byte.
    pub fn address(&self) -> u64 {
        self.block.address + self.offset
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the view has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the view.
    pub fn slice(&self, range: Range<u64>) -> Result<View> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::InvalidUse {
                what: "buffer".into(),
                reason: format!("range {}..{} exceeds its {} bytes", range.start, range.end, self.len),
            });
        }
        Ok(View {
            block: self.block.clone(),
            offset: self.offset + range.start,
            len: range.end - range.start,
        })
    }

    /// Position within the block, for copies and hazard tracking.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    pub(crate) fn check_device(&self, device: &DeviceInner) -> Result<()> {
        if std::ptr::eq(&*self.block.device, device) {
            Ok(())
        } else {
            Err(Error::InvalidUse { what: "buffer".into(), reason: "it belongs to another device".into() })
        }
    }
}

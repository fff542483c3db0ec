//! Handles shared by the loading thread and the signal handler.

use std::sync::Arc;

use indrik::Control;
use server::{EngineSlot, Handle};

/// Handles shared by the loading thread and the signal handler.
pub struct Controls {
    pub server: Handle,
    pub slot: Arc<EngineSlot>,
    /// Cancels the initial load.
    pub load: Arc<Control>,
    /// Cancels a reload after a lost device. Separate from `load`: requests that drain still need their device.
    pub reload: Arc<Control>,
}

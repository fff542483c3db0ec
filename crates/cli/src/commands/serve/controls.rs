//! Handles for shutting the server down.

use std::sync::Arc;

use indrik::Control;
use server::{Handle, Pool};

/// Handles for shutting the server down.
pub struct Controls {
    pub server: Handle,
    pub models: Pool,
    /// Cancels a reload after a lost device: requests that drain still need their device.
    pub reload: Arc<Control>,
}

//! The use of a loaded model by a request.

use std::ops::Deref;
use std::sync::Arc;

use super::pool::Pool;
use crate::served::ServedModel;

/// A loaded model that is in use: it stays loaded until the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Lease(Arc<Use>);

struct Use {
    /// `None` only while it is dropped.
    model: Option<Arc<ServedModel>>,
    pool: Pool,
}

impl Lease {
    /// The pool has counted the lease.
    pub(super) fn new(model: Arc<ServedModel>, pool: Pool) -> Lease {
        Lease(Arc::new(Use { model: Some(model), pool }))
    }
}

impl Deref for Lease {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        self.0.model.as_ref().expect("taken only when dropped")
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // First the model: once nobody uses it, the pool's reference must be the only one left.
        let Some(model) = self.model.take() else { return };
        let id = model.model.id.clone();
        drop(model);
        self.pool.release(&id);
    }
}

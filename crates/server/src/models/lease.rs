//! The use of a loaded model by a request.

use std::ops::Deref;
use std::sync::Arc;

use super::pool::Pool;
use crate::error::Error;
use crate::served::{Served, ServedEmbedder, ServedModel};

/// A loaded model that is in use: it stays loaded until the last clone is dropped.
pub(crate) struct Lease<T = ServedModel>(Arc<Use<T>>);

impl<T> Clone for Lease<T> {
    fn clone(&self) -> Self {
        Lease(self.0.clone())
    }
}

struct Use<T> {
    /// `None` only while it is dropped.
    model: Option<Arc<T>>,
    id: String,
    pool: Pool,
}

impl<T> Lease<T> {
    fn new(model: Arc<T>, id: String, pool: Pool) -> Lease<T> {
        Lease(Arc::new(Use { model: Some(model), id, pool }))
    }
}

impl<T> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.model.as_ref().expect("taken only when dropped")
    }
}

impl<T> Drop for Use<T> {
    fn drop(&mut self) {
        // First the model: once nobody uses it, the pool's reference must be the only one left.
        drop(self.model.take());
        self.pool.release(&self.id);
    }
}

/// A loaded model of any kind that is in use.
pub(crate) enum AnyLease {
    Language(Lease),
    Embedder(Lease<ServedEmbedder>),
}

impl AnyLease {
    /// The pool has counted the lease.
    pub(super) fn new(served: Served, pool: Pool) -> AnyLease {
        let id = served.id().to_owned();
        match served {
            Served::Language(model) => AnyLease::Language(Lease::new(model, id, pool)),
            Served::Embedder(model) => AnyLease::Embedder(Lease::new(model, id, pool)),
        }
    }

    /// Id of the model.
    pub(crate) fn id(&self) -> &str {
        match self {
            AnyLease::Language(lease) => &lease.model.id,
            AnyLease::Embedder(lease) => &lease.model.id,
        }
    }

    /// The model, if it generates text.
    pub(super) fn language(self) -> Result<Lease, Error> {
        match self {
            AnyLease::Language(lease) => Ok(lease),
            AnyLease::Embedder(lease) => Err(generates_no_text(&lease.model.id)),
        }
    }

    /// The model, if it embeds texts.
    pub(super) fn embedder(self) -> Result<Lease<ServedEmbedder>, Error> {
        match self {
            AnyLease::Embedder(lease) => Ok(lease),
            AnyLease::Language(lease) => Err(embeds_no_texts(&lease.model.id)),
        }
    }
}

pub(super) fn generates_no_text(id: &str) -> Error {
    let message = format!("'{id}' embeds texts and generates none: use /v1/embeddings");
    Error::UnsupportedByModel { param: "model".to_owned(), message }
}

pub(super) fn embeds_no_texts(id: &str) -> Error {
    let message = format!(
        "'{id}' generates text and embeds none: choose an embedding model, such as all-minilm, embeddinggemma or \
         qwen3-embedding"
    );
    Error::UnsupportedByModel { param: "model".to_owned(), message }
}

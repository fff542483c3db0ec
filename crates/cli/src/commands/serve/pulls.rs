//! Pulling and deleting models for clients of the server.

use std::sync::atomic::AtomicBool;

use server::{ModelStore, PullProgress, StoreError};
use store::{Error, ModelRequest, PullEvent, Settings, Store};

use crate::commands::pull::pull_quietly;

/// The store of the user that runs the server.
pub struct UserStore {
    /// Whose memory pulled models have to fit.
    pub device: Option<String>,
}

impl ModelStore for UserStore {
    fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress),
        cancel: &AtomicBool,
    ) -> Result<(), StoreError> {
        let request = ModelRequest::parse(name, &Settings::from_environment().hub).map_err(unknown)?;
        if matches!(request, ModelRequest::Url(_)) {
            // Clients must not make the server fetch from wherever they like.
            let message = "addresses cannot be pulled through the API: give a name or a repository of the hub, or use \
                           `indrik pull`";
            return Err(StoreError::Failed(message.to_owned()));
        }
        let digest = digest(&request);
        let mut report = |event: PullEvent| progress(describe(event, &digest));
        let pulled = pull_quietly(&request, self.device.as_deref(), &mut report, cancel);
        pulled.map(drop).map_err(|error| StoreError::Failed(format!("{error:#}")))
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        let removed = Store::open_default().and_then(|store| store.remove(&store.plan_removal(name)?));
        removed.map(drop).map_err(unknown)
    }
}

fn unknown(error: Error) -> StoreError {
    match error {
        Error::UnknownModel { .. } | Error::NotInStore { .. } => StoreError::NotFound,
        error => StoreError::Failed(error.to_string()),
    }
}

/// What a download is called in its progress: the checksum, if the model has one file that is known.
fn digest(request: &ModelRequest) -> String {
    match request {
        ModelRequest::Catalogue { model, qat: false, quant: None } => match &model.pinned {
            Some(pinned) => format!("sha256:{}", pinned.sha256),
            None => request.store_name(),
        },
        _ => request.store_name(),
    }
}

/// An event in the words of Ollama's clients.
fn describe(event: PullEvent, digest: &str) -> PullProgress {
    let status = match event {
        PullEvent::Progress { done, total } => {
            return PullProgress::Download { digest: digest.to_owned(), completed: done, total };
        }
        PullEvent::Resuming { done } => format!("resuming the download at {done} bytes"),
        PullEvent::Waiting => "waiting for another pull of this model".to_owned(),
        PullEvent::Damaged { .. } => "the file in the store is damaged: it is downloaded again".to_owned(),
        PullEvent::Licence { name, url } => {
            format!("licence: {name}{}", url.map_or_else(String::new, |url| format!(", {url}")))
        }
        PullEvent::TryingSource(source) => format!("trying {source}"),
        PullEvent::SourceFailed { source, reason } => format!("{source}: {reason}"),
        PullEvent::Retrying { reason, delay } => {
            format!("{reason}; next attempt in {:.0} s", delay.as_secs_f64())
        }
        PullEvent::Offline { reason, .. } => {
            format!("the hub cannot be reached, its cache is used: {reason}")
        }
        PullEvent::Cached { .. } => "the file is taken from the cache of the hub".to_owned(),
        PullEvent::OneConnection => "the download starts over with one connection".to_owned(),
        PullEvent::Discarded { reason } => format!("the file was wrong and is downloaded again: {reason}"),
        PullEvent::Verifying => "verifying sha256 digest".to_owned(),
        PullEvent::Unverified { file } => {
            format!("{file}: the hub publishes no checksum, its size was checked")
        }
    };
    PullProgress::Status(status)
}

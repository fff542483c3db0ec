//! Downloading a model from a model hub: one file behind a redirect.

use std::path::PathBuf;

use crate::{
    client::header,
    download::{Request, file_len},
    error::{Error, Result},
    sha256,
    task::{PullEvent, PullTask},
    url::{join, without_secrets},
};

/// Maximum number of redirects within the hub.
const MAX_REDIRECTS: usize = 5;

impl PullTask<'_> {
    /// Downloads the file of a repository.
    pub(crate) fn fetch_hub(
        &self,
        repository: &str,
        revision: &str,
        file: &str,
        report: &mut dyn FnMut(PullEvent),
    ) -> Result<PathBuf> {
        let settings = self.session.settings;
        let url = format!("{}/{repository}/resolve/{revision}/{file}", settings.hub);
        let headers: Vec<(&str, String)> =
            settings.token.iter().map(|token| ("Authorization", format!("Bearer {token}"))).collect();
        self.check_hub(&url, &headers)?;
        let path = self.part.join("hub.gguf.part");
        if file_len(&path) > 0 {
            report(PullEvent::Resuming { done: file_len(&path) });
        }
        let request = Request { url: &url, headers: &headers, path: &path, size: Some(self.model.bytes) };
        self.session.download(&request, &mut |event| report(self.event(event, 0)))?;
        Ok(path)
    }

    /// Checks that the hub has the right file before downloading it. The hub publishes the SHA-256 of large
    /// files in a header of the redirect that leads to them.
    fn check_hub(&self, url: &str, headers: &[(&str, String)]) -> Result<()> {
        let mut url = url.to_string();
        for _ in 0..MAX_REDIRECTS {
            let response =
                match self.session.client.head(&url, headers, self.session.settings.hub_connect_timeout) {
                    Ok(response) => response,
                    // Some mirrors do not support HEAD; the checksum of the download decides then.
                    Err(Error::Status { status: 405 | 501, .. }) => return Ok(()),
                    Err(error) => return self.session.check_cancelled().and(Err(error)),
                };
            let published = header(&response, "x-linked-etag").map(|tag| tag.trim_matches('"'));
            if let Some(found) = published.filter(|tag| sha256::is_sha256(tag)) {
                if found.eq_ignore_ascii_case(self.model.sha256) {
                    return Ok(());
                }
                return Err(Error::Checksum {
                    what: format!("{} (the hub's file has changed)", without_secrets(&url)),
                    expected: self.model.sha256.to_string(),
                    found: found.to_string(),
                });
            }
            // A renamed repository redirects within the hub. The token must not be sent anywhere else.
            match header(&response, "location") {
                Some(location) if location.starts_with('/') && !location.starts_with("//") => {
                    url = join(&url, location);
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}

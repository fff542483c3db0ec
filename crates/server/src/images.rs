//! Images of requests: from base64 or URLs to what the model's encoder takes, within limits.
//!
//! Decoding and resizing take tens of milliseconds, and hundreds of megabytes for the largest images. So they run on
//! blocking threads, a limited number at a time, and one image of a request after the other. Images that wait for the
//! engine or are in use count against a budget, from before they are decoded until the response is complete.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use engine::{Image, ImageProcessor};
use images::{Format, Limits};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::completion::blocking;
use crate::config::{Config, Model};
use crate::error::Error;
use crate::fetch::Fetcher;

/// Unit of the budget: semaphores count with 32 bits.
const UNIT: usize = 1 << 10;

/// Maximum number of images fetched at once.
const MAX_FETCHES: usize = 8;

/// Clients send base64 with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Maximum length of a media type in an error, in characters.
const MAX_SHOWN: usize = 60;

/// An image of a request that is not decoded yet.
#[derive(Debug)]
pub(crate) struct ImageSource {
    /// The field, for errors.
    pub(crate) param: String,
    pub(crate) location: ImageLocation,
}

/// Where the bytes of an image are.
#[derive(Debug)]
pub(crate) enum ImageLocation {
    /// In the request, in base64.
    Base64 {
        /// As declared by the media type, if there is one.
        format: Option<Format>,
        text: String,
        /// Where the base64 starts in the text.
        start: usize,
    },
    /// On another server: an http or https URL.
    Remote(String),
}

impl ImageLocation {
    /// An image in base64 that starts at `start` of a text.
    pub(crate) fn base64(
        param: &str,
        mime: &str,
        text: String,
        start: usize,
        limits: &Limits,
    ) -> Result<ImageLocation, Error> {
        let Some(format) = Format::from_mime(mime) else {
            let mime: String = mime.chars().take(MAX_SHOWN).collect();
            let known = Format::ALL.map(Format::mime).join(", ");
            let message =
                format!("the media type {mime:?} is not supported: convert the image to one of {known}");
            return Err(Error::invalid_field(param, message));
        };
        ImageLocation::checked_base64(param, Some(format), text, start, limits)
    }

    /// An image in base64, without a media type.
    pub(crate) fn untyped_base64(param: &str, text: String, limits: &Limits) -> Result<ImageLocation, Error> {
        ImageLocation::checked_base64(param, None, text, 0, limits)
    }

    fn checked_base64(
        param: &str,
        format: Option<Format>,
        text: String,
        start: usize,
        limits: &Limits,
    ) -> Result<ImageLocation, Error> {
        let bytes = (text.len() - start) as u64 / 4 * 3;
        if bytes > limits.max_bytes {
            let error = images::Error::TooManyBytes { bytes, limit: limits.max_bytes };
            return Err(Error::invalid_field(param, error));
        }
        Ok(ImageLocation::Base64 { format, text, start })
    }

    /// An image on another server.
    pub(crate) fn remote(param: &str, url: String) -> Result<ImageLocation, Error> {
        match is_remote(&url) {
            true => Ok(ImageLocation::Remote(url)),
            false => Err(Error::invalid_field(param, "must be an http or https URL")),
        }
    }
}

/// Whether an image has to be fetched.
pub(crate) fn is_remote(url: &str) -> bool {
    let has_scheme =
        |scheme: &str| url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    has_scheme("http://") || has_scheme("https://")
}

/// Decodes images, within limits that all requests share.
pub(crate) struct ImageLoader {
    limits: Limits,
    max_images: usize,
    /// One permit per image that is being decoded.
    workers: Arc<Semaphore>,
    /// One permit per [`UNIT`] bytes of images.
    memory: Arc<Semaphore>,
    memory_units: u32,
    timeout: Duration,
    /// If image URLs are allowed, with one permit per image that is being fetched.
    remote: Option<(Arc<Fetcher>, Arc<Semaphore>)>,
}

/// Images of a request, and the memory that they take.
#[derive(Debug, Default)]
pub(crate) struct LoadedImages {
    /// The images of each picture: itself and its crops.
    pub(crate) pictures: Vec<Vec<Image>>,
    pub(crate) memory: Option<OwnedSemaphorePermit>,
}

impl ImageLoader {
    pub(crate) fn new(config: &Config) -> ImageLoader {
        let fetcher = || Fetcher::new(config.image_limits.max_bytes, config.image_url_timeout);
        let remote = || (Arc::new(fetcher()), Arc::new(Semaphore::new(MAX_FETCHES)));
        let memory_units = u32::try_from(config.max_inflight_image_bytes / UNIT).unwrap_or(u32::MAX);
        ImageLoader {
            limits: config.image_limits,
            max_images: config.max_images,
            workers: Arc::new(Semaphore::new(config.image_workers.max(1))),
            memory: Arc::new(Semaphore::new(memory_units as usize)),
            memory_units,
            timeout: config.queue_timeout,
            remote: config.allow_image_urls.then(remote),
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Checks what can be checked before an image is decoded.
    pub(crate) fn check(&self, model: &Model, sources: &[ImageSource]) -> Result<(), Error> {
        let Some(first) = sources.first() else { return Ok(()) };
        if let Err(reason) = &model.images {
            let message = format!("images cannot be used: {reason}");
            return Err(Error::UnsupportedByModel { param: first.param.clone(), message });
        }
        if let Some(extra) = sources.get(self.max_images) {
            let message = format!(
                "is image {} of {}, but a request may have at most {}",
                self.max_images + 1,
                sources.len(),
                self.max_images
            );
            return Err(Error::invalid_field(extra.param.clone(), message));
        }
        let is_remote = |source: &&ImageSource| matches!(source.location, ImageLocation::Remote(_));
        if let Some(remote) = sources.iter().find(is_remote)
            && self.remote.is_none()
        {
            let message = "this server fetches no images: send the image in base64 (in OpenAI's API as a data URL, \
                           data:image/png;base64,…), or start the server with --allow-image-urls";
            return Err(Error::invalid_field(remote.param.clone(), message));
        }
        Ok(())
    }

    /// Decodes the images of a request that was [checked](Self::check).
    pub(crate) async fn load(
        &self,
        processor: &ImageProcessor,
        sources: Vec<ImageSource>,
    ) -> Result<LoadedImages, Error> {
        let bytes = sources.len() * processor.max_images_per_picture() * processor.image_bytes();
        // A single request may always run.
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(self.memory_units);
        let memory = self.admit(self.memory.clone().acquire_many_owned(units)).await?;
        let mut pictures = Vec::with_capacity(sources.len());
        for ImageSource { param, location } in sources {
            let bytes = match location {
                ImageLocation::Base64 { format, text, start } => Bytes::Base64 { format, text, start },
                ImageLocation::Remote(url) => self.fetch(&param, url).await?,
            };
            let worker = self.admit(self.workers.clone().acquire_owned()).await?;
            let (limits, processor) = (self.limits, processor.clone());
            let decode = move || {
                let _worker = worker;
                decode(&param, bytes, &limits, &processor)
            };
            pictures.push(blocking(decode).await?);
        }
        Ok(LoadedImages { pictures, memory: Some(memory) })
    }

    /// Fetches an image.
    async fn fetch(&self, param: &str, url: String) -> Result<Bytes, Error> {
        let Some((fetcher, slots)) = &self.remote else { return Err(Error::Internal) };
        let slot = self.admit(slots.clone().acquire_owned()).await?;
        let (fetcher, param) = (fetcher.clone(), param.to_owned());
        blocking(move || match fetcher.fetch(&url) {
            Ok(bytes) => Ok(Bytes::Fetched(bytes, slot)),
            Err(reason) => Err(Error::invalid_field(param, format!("could not be fetched: {reason}"))),
        })
        .await
    }

    async fn admit(
        &self,
        permit: impl Future<Output = Result<OwnedSemaphorePermit, tokio::sync::AcquireError>>,
    ) -> Result<OwnedSemaphorePermit, Error> {
        let permit = tokio::time::timeout(self.timeout, permit).await;
        Ok(permit.map_err(|_| Error::QueueTimeout(self.timeout))?.expect("the semaphore is never closed"))
    }
}

/// The file of an image.
enum Bytes {
    Base64 {
        format: Option<Format>,
        text: String,
        start: usize,
    },
    /// With the permit to fetch, so that the number of files in memory is limited too.
    Fetched(Vec<u8>, OwnedSemaphorePermit),
}

fn decode(
    param: &str,
    bytes: Bytes,
    limits: &Limits,
    processor: &ImageProcessor,
) -> Result<Vec<Image>, Error> {
    let (bytes, slot) = match bytes {
        Bytes::Base64 { format, text, start } => (decode_base64(param, format, &text[start..])?, None),
        Bytes::Fetched(bytes, slot) => (bytes, Some(slot)),
    };
    let picture = images::decode(&bytes, limits).map_err(|error| Error::invalid_field(param, error))?;
    drop((bytes, slot));
    Ok(processor.process(&picture))
}

fn decode_base64(param: &str, format: Option<Format>, text: &str) -> Result<Vec<u8>, Error> {
    let bytes = BASE64.decode(text).map_err(|error| {
        Error::invalid_field(param, format!("is not valid base64: {}", error.to_string().to_lowercase()))
    })?;
    match (Format::of(&bytes), format) {
        (Some(found), Some(format)) if found != format => {
            let (declared, mime) = (format.mime(), found.mime());
            let message = format!("is declared as {declared}, but contains {found}: declare it as {mime}");
            Err(Error::invalid_field(param, message))
        }
        // Decoding reports unknown formats.
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn processor() -> ImageProcessor {
        ImageProcessor::square(28, 7, 2)
    }

    /// GIF files of one pixel.
    fn sources(count: usize) -> Vec<ImageSource> {
        let url = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
        let source = |_| ImageSource {
            param: "x".to_owned(),
            location: ImageLocation::Base64 { format: Some(Format::Gif), text: url.to_owned(), start: 22 },
        };
        (0..count).map(source).collect()
    }

    #[test]
    fn images_wait_for_memory() {
        let processor = processor();
        let max_inflight_image_bytes = (2 * processor.image_bytes()).next_multiple_of(UNIT);
        let loader = ImageLoader::new(&Config { max_inflight_image_bytes, ..Config::default() });
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let first = loader.load(&processor, sources(2)).await.unwrap();
            assert_eq!((first.pictures.len(), loader.memory.available_permits()), (2, 0));
            let mut second = pin!(loader.load(&processor, sources(1)));
            assert!(second.as_mut().now_or_never().is_none());
            // It is not being decoded.
            assert_eq!(loader.workers.available_permits(), Config::default().image_workers);
            drop(first);
            let second = second.await.unwrap();
            assert_eq!(second.pictures[0][0].soft_tokens(), 4);
            drop(second);
            // A request that needs more than there is runs alone.
            let large = loader.load(&processor, sources(9)).await.unwrap();
            assert_eq!(loader.memory.available_permits(), 0);
            drop(large);
            assert_eq!(loader.memory.available_permits(), loader.memory_units as usize);
        });
    }
}

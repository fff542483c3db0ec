//! Images in messages: parts of the type `image_url`.

use images::Limits;
use serde_json::Value;
use utoipa::ToSchema;

use crate::error::Error;
use crate::images::{ImageLocation, ImageSource, is_remote};

/// The type of the part.
pub(crate) const IMAGE_URL: &str = "image_url";

/// Start of a data URL.
const SCHEME: &str = "data:";

/// `image_url` in the OpenAPI document.
#[derive(ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) enum ImageUrlSchema {
    Object(ImageUrlObject),
    Url(String),
}

/// An image.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes the schema; never constructed")]
pub(crate) struct ImageUrlObject {
    /// The image as a data URL in base64: PNG, JPEG, WebP, GIF or BMP. An http or https URL only if the server allows it.
    url: String,
    /// Accepted, without effect: the model decides how images are scaled.
    detail: Option<String>,
}

/// Takes the images out of a chat request, in order. Their URLs in the body become empty.
pub(crate) fn take_images(body: &mut Value, limits: &Limits) -> Result<Vec<ImageSource>, Error> {
    let mut sources = Vec::new();
    let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) else { return Ok(sources) };
    for (index, message) in messages.iter_mut().enumerate() {
        let is_user = message.get("role").and_then(Value::as_str) == Some("user");
        let Some(parts) = message.get_mut("content").and_then(Value::as_array_mut) else { continue };
        for (part_index, part) in parts.iter_mut().enumerate() {
            if part.get("type").and_then(Value::as_str) != Some(IMAGE_URL) {
                continue;
            }
            let path = format!("messages[{index}].content[{part_index}]");
            if !is_user {
                let message = "images are only allowed in messages with the role user";
                return Err(Error::invalid_field(format!("{path}.type"), message));
            }
            let param = format!("{path}.{IMAGE_URL}");
            let url = take_url(part, &param)?;
            sources.push(ImageSource { location: parse_url(url, &param, limits)?, param });
        }
    }
    Ok(sources)
}

/// The URL of a part: the field `url` of an object, or a string, as some clients send it.
fn take_url(part: &mut Value, param: &str) -> Result<String, Error> {
    match part.get_mut(IMAGE_URL) {
        None | Some(Value::Null) => Err(Error::missing_field(param)),
        Some(Value::String(url)) => Ok(std::mem::take(url)),
        Some(Value::Object(fields)) => {
            match fields.get("detail") {
                None | Some(Value::Null) => {}
                Some(detail) if matches!(detail.as_str(), Some("auto" | "low" | "high")) => {}
                Some(_) => {
                    let message = "must be auto, low or high";
                    return Err(Error::invalid_field(format!("{param}.detail"), message));
                }
            }
            match fields.get_mut("url") {
                None | Some(Value::Null) => Err(Error::missing_field(format!("{param}.url"))),
                Some(Value::String(url)) => Ok(std::mem::take(url)),
                Some(_) => Err(Error::invalid_field(format!("{param}.url"), "must be a string")),
            }
        }
        Some(_) => Err(Error::invalid_field(param, "must be an object with the field url, or a string")),
    }
}

/// The image at a URL of the field `param`.
pub(super) fn parse_url(url: String, param: &str, limits: &Limits) -> Result<ImageLocation, Error> {
    if is_remote(&url) {
        return Ok(ImageLocation::Remote(url));
    }
    let invalid = |message: String| Err(Error::invalid_field(param, message));
    if !url.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME)) {
        return invalid("must be a data URL, such as data:image/png;base64,…".to_owned());
    }
    // The metadata is short: the base64 is not searched.
    let comma = url.bytes().take(256).position(|byte| byte == b',');
    let metadata = comma.map(|comma| &url[SCHEME.len()..comma]);
    let is_base64 = |metadata: &&str| metadata.to_ascii_lowercase().ends_with(";base64");
    let (Some(comma), Some(metadata)) = (comma, metadata.filter(is_base64)) else {
        return invalid("must be a data URL in base64: data:image/png;base64,…".to_owned());
    };
    let start = comma + 1;
    let mime = metadata.split(';').next().unwrap_or_default().to_owned();
    ImageLocation::base64(param, &mime, url, start, limits)
}

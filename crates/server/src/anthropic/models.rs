//! `/v1/models` for Anthropic's clients.

use serde::Serialize;
use utoipa::ToSchema;

use crate::models::ModelDescription;

/// The header by which Anthropic's clients are recognised.
pub(crate) const VERSION_HEADER: &str = "anthropic-version";

/// Response of `/v1/models`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicModelList)]
pub(crate) struct ModelList {
    data: Vec<ModelInfo>,
    has_more: bool,
    #[schema(required)]
    first_id: Option<String>,
    #[schema(required)]
    last_id: Option<String>,
}

impl ModelList {
    pub(crate) fn new(models: &[ModelDescription]) -> ModelList {
        let id = |model: Option<&ModelDescription>| model.map(|model| model.id.clone());
        let (first_id, last_id) = (id(models.first()), id(models.last()));
        ModelList { data: models.iter().map(ModelInfo::new).collect(), has_more: false, first_id, last_id }
    }
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicModelInfo)]
pub(crate) struct ModelInfo {
    r#type: &'static str,
    id: String,
    display_name: String,
    /// As in RFC 3339.
    created_at: String,
}

impl ModelInfo {
    pub(crate) fn new(model: &ModelDescription) -> ModelInfo {
        let (id, display_name) = (model.id.clone(), model.id.clone());
        ModelInfo { r#type: "model", id, display_name, created_at: rfc3339(model.created) }
    }
}

/// Seconds since 1970 as a date and time, in UTC.
fn rfc3339(seconds: u64) -> String {
    let (mut year, mut days) = (1970, seconds / 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    // 400 years have 146,097 days.
    year += days / 146_097 * 400;
    days %= 146_097;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    #[test]
    fn times_are_dates() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(super::rfc3339(seconds), date);
        }
    }
}

//! `/v1/models` for Anthropic's clients.

use serde::Serialize;
use utoipa::ToSchema;

use crate::models::ModelDescription;
use crate::time::rfc3339;

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

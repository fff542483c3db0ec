//! Spans in OTLP's JSON encoding.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Span;

/// An `ExportTraceServiceRequest`.
pub(super) fn request(spans: &[Span]) -> Value {
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            attribute("service.name", "indrik".into()),
            attribute("service.version", env!("CARGO_PKG_VERSION").into()),
        ] },
        "scopeSpans": [{
            "scope": { "name": "indrik", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }] })
}

fn span(span: &Span) -> Value {
    let mut attributes = vec![
        attribute("http.request.method", span.method.as_str().into()),
        attribute("url.path", span.path.as_str().into()),
        attribute("indrik.request_id", span.request_id.as_str().into()),
        attribute("indrik.outcome", span.outcome.into()),
    ];
    if !span.model.is_empty() {
        attributes.push(attribute("gen_ai.request.model", span.model.as_str().into()));
        attributes.push(attribute("gen_ai.usage.input_tokens", span.usage.prompt_tokens.into()));
        attributes.push(attribute("gen_ai.usage.output_tokens", span.usage.completion_tokens.into()));
        attributes.push(attribute("gen_ai.usage.cache_read.input_tokens", span.usage.cached_tokens.into()));
    }
    if let Some(time) = span.time_to_first_token {
        let name = "gen_ai.latency.time_to_first_token";
        attributes.push(attribute(name, time.as_secs_f64().into()));
    }
    // Of the status codes, 0 is unset and 2 an error.
    let status = match span.outcome {
        "success" => json!({ "code": 0 }),
        outcome => json!({ "code": 2, "message": outcome }),
    };
    let mut value = json!({
        "traceId": span.trace.to_string(),
        "spanId": span.id.to_string(),
        "name": format!("{} {}", span.method, route(&span.path)),
        // A server's.
        "kind": 2,
        "startTimeUnixNano": nanoseconds(span.started),
        "endTimeUnixNano": nanoseconds(span.started + span.duration),
        "attributes": attributes,
        "status": status,
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = parent.to_string().into();
    }
    value
}

/// The path without the ids of models and stored responses: spans of one kind have one name.
fn route(path: &str) -> &str {
    let with_id = ["/v1/models/", "/v1/responses/", "/api/blobs/"];
    let found = with_id.iter().find(|prefix| path.starts_with(**prefix));
    found.map_or(path, |prefix| prefix.trim_end_matches('/'))
}

fn attribute(key: &str, value: Value) -> Value {
    let value = match value {
        // 64-bit integers are text in protobuf's JSON.
        Value::Number(number) if number.is_u64() => json!({ "intValue": number.to_string() }),
        Value::Number(number) => json!({ "doubleValue": number }),
        text => json!({ "stringValue": text }),
    };
    json!({ "key": key, "value": value })
}

/// Nanoseconds since 1970, as text.
fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

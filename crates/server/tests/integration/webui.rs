//! The web UI at `/`.

use crate::common::{Fixture, HttpResponse, MODEL, Mock};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use server::Config;
use sha2::{Digest, Sha256};

fn header<'a>(response: &'a HttpResponse, name: &str) -> &'a str {
    response.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
}

/// Contents of all elements of this name, with whatever attributes.
fn elements<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}"), format!("</{name}>"));
    let starts = page.match_indices(&open).map(|(at, _)| &page[at + open.len()..]);
    let starts = starts.filter(|rest| rest.starts_with(['>', ' ', '\n']));
    starts.map(|rest| rest.split_once('>').unwrap().1.split_once(&close).unwrap().0).collect()
}

#[test]
fn the_page_is_served_with_a_strict_policy() {
    let server = Fixture::new();
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert_eq!(header(&page, "content-type"), "text/html; charset=utf-8");
    assert_eq!(header(&page, "x-content-type-options"), "nosniff");
    assert_eq!(header(&page, "referrer-policy"), "no-referrer");
    assert_eq!(header(&page, "cache-control"), "no-cache");
    let policy = header(&page, "content-security-policy");
    for directive in [
        "default-src 'none'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.split("; ").any(|found| found == directive), "{directive}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
}

#[test]
fn the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() {
    let page = Fixture::new().get("/");
    let policy = header(&page, "content-security-policy");
    for (element, directive) in [("script", "script-src"), ("style", "style-src")] {
        let contents = elements(&page.body, element);
        assert_eq!(contents.len(), 1, "{element}");
        assert!(contents[0].len() > 1000, "{element}");
        let hash = STANDARD.encode(Sha256::digest(contents[0]));
        let expected = format!("{directive} 'sha256-{hash}'");
        assert!(policy.split("; ").any(|found| found == expected), "{expected}: {policy}");
    }
    // Both are complete: nothing is loaded from anywhere else.
    assert!(!page.body.contains(" src="), "something is loaded");
    assert!(!page.body.contains("<link rel=\"stylesheet\""));
}

#[test]
fn a_browser_that_has_the_page_gets_304() {
    let server = Fixture::new();
    let first = server.get("/");
    let tag = header(&first, "etag").to_owned();
    for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()] {
        let second = server.get_with("/", ("If-None-Match", &known));
        assert_eq!((second.status, second.body.as_str()), (304, ""), "{known}");
        assert_eq!(header(&second, "etag"), tag);
        assert!(second.headers.contains_key("content-security-policy"));
    }
    let changed = server.get_with("/", ("If-None-Match", "\"other\""));
    assert_eq!((changed.status, changed.body), (200, first.body));
}

#[test]
fn the_page_needs_no_key_but_what_it_fetches_does() {
    let config = Config { api_keys: vec!["key".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    let page = server.get("/");
    assert_eq!(page.status, 200);
    // Nothing of this server is in it.
    assert!(!page.body.contains(MODEL));
    server.get("/v1/models").error(401, "invalid_api_key");
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "one" }] });
    server.post("/v1/chat/completions", &body).error(401, "invalid_api_key");
    assert_eq!(server.get_with("/v1/models", ("Authorization", "Bearer key")).status, 200);
}

#[test]
fn the_page_can_be_switched_off() {
    let server = Fixture::with_config(Mock::new(), Config { webui: false, ..Config::default() });
    let got = server.get("/");
    assert_eq!((got.status, got.body.as_str()), (200, "Indrik is running"));
    assert_eq!(server.get("/v1/models").status, 200);
}

#[test]
fn the_page_follows_the_rules_of_hosts_and_methods() {
    let config = Config { allowed_hosts: Some(vec![]), ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    assert_eq!(server.get("/").status, 200);
    server.get_with("/", ("Host", "evil.example")).error(403, "host_not_allowed");
    server.post("/", &json!({})).error(405, "method_not_allowed");
}

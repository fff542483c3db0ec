//! The Simple API of a package index: one page per package, which lists its files. Indexes respond in HTML
//! (PEP 503) or JSON (PEP 691); both are parsed here.

use serde::Deserialize;

use crate::{
    error::{Error, Result},
    sha256::is_sha256,
    url,
};

/// The `Accept` header: prefers JSON.
pub const ACCEPT: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";

/// A file of a package.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    /// File name.
    pub name: String,
    /// Address.
    pub url: String,
    /// SHA-256 in hexadecimal, if the index provides it.
    pub sha256: Option<String>,
}

/// Address of a package's page.
pub fn page_url(index: &str, package: &str) -> String {
    format!("{index}/{}/", normalized(package, '-'))
}

/// Finds the wheel of a version on the package's page.
pub fn wheel(page: &str, body: &str, package: &str, version: &str) -> Result<File> {
    let error = |reason: String| Error::Index { url: url::without_secrets(page), reason };
    let files = files(page, body).map_err(error)?;
    let name = normalized(package, '_');
    files
        .into_iter()
        .find(|file| {
            let mut pieces = file.name.split('-');
            file.name.ends_with("-none-any.whl")
                && pieces.next().is_some_and(|piece| normalized(piece, '_') == name)
                && pieces.next() == Some(version)
        })
        .ok_or_else(|| error(format!("the index has no wheel of {package} {version}")))
}

fn files(page: &str, body: &str) -> Result<Vec<File>, String> {
    // Decided by the content: the Content-Type header is wrong on some indexes.
    if body.trim_start().starts_with('{') { from_json(page, body) } else { from_html(page, body) }
}

fn from_json(page: &str, body: &str) -> Result<Vec<File>, String> {
    #[derive(Deserialize)]
    struct Page {
        files: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        filename: String,
        url: String,
        #[serde(default)]
        hashes: std::collections::HashMap<String, String>,
    }
    let parsed: Page =
        serde_json::from_str(body).map_err(|error| format!("not a package index page ({error})"))?;
    let entry = |entry: Entry| File {
        url: url::join(page, &entry.url),
        sha256: entry.hashes.get("sha256").and_then(|hash| checksum(hash)),
        name: entry.filename,
    };
    Ok(parsed.files.into_iter().map(entry).collect())
}

fn from_html(page: &str, body: &str) -> Result<Vec<File>, String> {
    let lower = body.to_ascii_lowercase();
    if !lower.contains("<html") && !lower.contains("<a ") {
        return Err("not a package index page (neither HTML nor JSON)".to_string());
    }
    let mut files = Vec::new();
    let mut at = 0;
    while let Some(found) = lower[at..].find("<a") {
        let start = at + found + 2;
        let Some(end) = tag_end(&body[start..]).map(|end| start + end) else { break };
        at = end;
        if let Some(href) = attribute(&body[start..end], "href") {
            let href = unescaped(href);
            let (address, fragment) = href.split_once('#').unwrap_or((&href, ""));
            let hash = fragment.split('&').find_map(|piece| piece.strip_prefix("sha256="));
            let path = address.split('?').next().unwrap_or_default();
            files.push(File {
                name: path.rsplit('/').next().unwrap_or_default().to_string(),
                url: url::join(page, address),
                sha256: hash.and_then(checksum),
            });
        }
    }
    Ok(files)
}

/// The offset of a tag's end. Some indexes do not escape `>` within quotes.
fn tag_end(text: &str) -> Option<usize> {
    let mut quote = None;
    text.char_indices().find_map(|(at, c)| {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '>') => return Some(at),
            _ => {}
        }
        None
    })
}

/// The value of an attribute in a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = tag;
    loop {
        rest = rest.trim_start();
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        if end == 0 {
            return None;
        }
        let (key, after) = rest.split_at(end);
        let after = after.trim_start();
        let Some(value) = after.strip_prefix('=').map(str::trim_start) else {
            rest = after;
            continue;
        };
        let (value, after) = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => value[1..].split_once(quote)?,
            _ => value.split_at(value.find(char::is_whitespace).unwrap_or(value.len())),
        };
        if key.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = after;
    }
}

fn unescaped(text: &str) -> String {
    let mut text = text.to_string();
    // The ampersand comes last; otherwise its result could form another entity.
    for (entity, plain) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#x27;", "'"), ("&#39;", "'"), ("&amp;", "&")]
    {
        text = text.replace(entity, plain);
    }
    text
}

fn checksum(hash: &str) -> Option<String> {
    is_sha256(hash).then(|| hash.to_ascii_lowercase())
}

/// A normalised package name (PEP 503): lower case, runs of `-`, `_` and `.` replaced by one separator.
fn normalized(name: &str, separator: char) -> String {
    let mut text = String::new();
    for c in name.to_ascii_lowercase().chars() {
        match c {
            '-' | '_' | '.' if text.ends_with(separator) => {}
            '-' | '_' | '.' => text.push(separator),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "https://host/simple/my-model-part1/";

    fn expected(hash: Option<&str>) -> File {
        File {
            name: "My.Model_part1-1.0-py3-none-any.whl".into(),
            url: "https://host/files/My.Model_part1-1.0-py3-none-any.whl".into(),
            sha256: hash.map(str::to_string),
        }
    }

    #[test]
    fn html_and_json_pages_give_the_same_wheel() {
        let hash = "aB".repeat(32);
        let html = format!(
            r#"<!DOCTYPE html><html><head><title>Links</title></head><body><h1>Links</h1>
            <a href="x-1.0.tar.gz">x-1.0.tar.gz</a><br/>
            <a href="../../files/my_model_part1-0.9-py3-none-any.whl#sha256={hash}">my_model_part1-0.9-py3-none-any.whl</a>
            <A data-requires-python=">=3.9" data-yanked HREF='../../files/My.Model_part1-1.0-py3-none-any.whl#egg=1&amp;sha256={hash}'
               rel=internal > The wheel </A></body></html>"#
        );
        let json = format!(
            r#"{{"meta": {{"api-version": "1.1"}}, "name": "my-model-part1", "files": [
                {{"filename": "x-1.0.tar.gz", "url": "x-1.0.tar.gz", "hashes": {{}}}},
                {{"filename": "My.Model_part1-1.0-py3-none-any.whl", "size": 5, "yanked": false,
                  "url": "/files/My.Model_part1-1.0-py3-none-any.whl", "hashes": {{"md5": "1", "sha256": "{hash}"}}}}]}}"#
        );
        let lower = hash.to_ascii_lowercase();
        for body in [html, json] {
            assert_eq!(wheel(PAGE, &body, "my-model-part1", "1.0").unwrap(), expected(Some(&lower)));
            let error = wheel(PAGE, &body, "my-model-part1", "2.0").unwrap_err().to_string();
            assert!(error.contains("no wheel of my-model-part1 2.0"), "{error}");
            assert!(wheel(PAGE, &body, "my-model", "1.0").is_err(), "a package whose name is only a prefix");
        }
    }

    #[test]
    fn missing_and_invalid_hashes_are_ignored() {
        for fragment in ["", "#md5=1", "#sha256=zz", "#sha256="] {
            let html = format!(
                "<a href=/files/My.Model_part1-1.0-py3-none-any.whl{fragment}>My.Model_part1-1.0-py3-none-any.whl</a>"
            );
            assert_eq!(wheel(PAGE, &html, "my-model-part1", "1.0").unwrap(), expected(None), "{fragment}");
        }
    }

    #[test]
    fn other_pages_are_rejected() {
        for body in
            ["", "{", "{\"files\": 5}", "gateway timeout", "<html>login</html>", "<a href=\"", "<a <a <a>"]
        {
            assert!(wheel(PAGE, body, "my-model-part1", "1.0").is_err(), "{body}");
        }
    }

    #[test]
    fn names_are_normalized() {
        assert_eq!(
            page_url("https://host/simple", "My.Model__part-1"),
            "https://host/simple/my-model-part-1/"
        );
    }
}

//! URL handling: relative links, and URLs without credentials for messages.

/// Resolves a link relative to its page.
pub fn join(page: &str, link: &str) -> String {
    if has_scheme(link) {
        return link.to_string();
    }
    let Some((scheme, rest)) = page.split_once("://") else { return link.to_string() };
    if let Some(target) = link.strip_prefix("//") {
        return format!("{scheme}://{target}");
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let folder = if link.starts_with('/') { "" } else { &path[..path.rfind('/').unwrap_or(0)] };
    let (link, suffix) = link.split_at(link.find(['?', '#']).unwrap_or(link.len()));
    let mut segments: Vec<&str> = folder.split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in link.trim_start_matches('/').split('/') {
        match segment {
            "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    format!("{scheme}://{authority}/{}{suffix}", segments.join("/"))
}

/// The URL without credentials, query and fragment, for messages and records.
pub fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_string() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// The origin of a URL: scheme, host and port, in lower case and with the default port left out.
pub fn origin(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return String::new() };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host).to_ascii_lowercase();
    let scheme = scheme.to_ascii_lowercase();
    let default_port = if scheme == "https" { ":443" } else { ":80" };
    format!("{scheme}://{}", host.strip_suffix(default_port).unwrap_or(&host))
}

/// A path or name with everything percent-encoded that a URL path cannot contain; slashes are kept.
pub fn encode_path(path: &str) -> String {
    let mut encoded = String::new();
    for byte in path.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) => encoded.push(byte.into()),
            byte => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

fn has_scheme(link: &str) -> bool {
    link.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_and_relative_links_are_resolved() {
        let page = "https://user:secret@host:8080/root/simple/name/?x=a/b";
        for (link, expected) in [
            ("https://elsewhere/a.whl#sha256=1", "https://elsewhere/a.whl#sha256=1"),
            ("//elsewhere/a.whl", "https://elsewhere/a.whl"),
            ("/files/a.whl", "https://user:secret@host:8080/files/a.whl"),
            ("a.whl#sha256=1/2", "https://user:secret@host:8080/root/simple/name/a.whl#sha256=1/2"),
            ("../../packages/a.whl", "https://user:secret@host:8080/root/packages/a.whl"),
            ("../../../../../a.whl", "https://user:secret@host:8080/a.whl"),
            ("./a.whl", "https://user:secret@host:8080/root/simple/name/a.whl"),
        ] {
            assert_eq!(join(page, link), expected);
        }
        assert_eq!(join("http://host", "a.whl"), "http://host/a.whl");
    }

    #[test]
    fn credentials_are_removed() {
        let secret = "https://user:p@ss@host/simple/?token=1#x";
        assert_eq!(without_secrets(secret), "https://host/simple/");
        assert_eq!(without_secrets("http://host"), "http://host");
    }

    #[test]
    fn origins_compare_scheme_host_and_port() {
        let hub = origin("https://user:p@ss@Host:443/a?b=https://other");
        assert_eq!(hub, "https://host");
        assert_eq!(origin("HTTPS://host"), hub);
        for other in ["http://host", "https://host:8443", "https://host.evil.org", "https://evil@other"] {
            assert_ne!(origin(other), hub, "{other}");
        }
        assert_eq!(origin("not an address"), "");
    }

    #[test]
    fn paths_are_encoded() {
        assert_eq!(encode_path("Q4 K/a#b?c%d-ü.gguf"), "Q4%20K/a%23b%3Fc%25d-%C3%BC.gguf");
    }
}

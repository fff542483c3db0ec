//! The server with malicious and broken clients, while another client is served.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::common::served::{Served, has_device, serve};
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";

/// Runs `work` while another client repeats a request: it must always get the same completion.
fn while_serving_another(server: &Served, work: impl FnOnce()) {
    let body = json!({ "model": "tiny", "prompt": "the cat sat", "max_tokens": 8, "temperature": 0 });
    let expected = server.complete(&body)["choices"].take();
    let done = AtomicBool::new(false);
    let served = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut served = 0;
            while served == 0 || !done.load(Ordering::Relaxed) {
                assert_eq!(server.complete(&body)["choices"], expected);
                served += 1;
            }
            served
        });
        // Stop the other client even if `work` panics.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let served = other.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        served
    });
    assert!(served > 0);
}

/// Sends raw bytes and returns everything received until the connection is closed.
fn send_raw(server: &Served, parts: &[&[u8]]) -> String {
    let mut stream = server.connect();
    for part in parts {
        // The server may close the connection early.
        if stream.write_all(part).is_err() {
            break;
        }
    }
    read_to_close(&mut stream)
}

fn read_to_close(stream: &mut TcpStream) -> String {
    let mut bytes = vec![];
    // A reset counts as a close; what arrived before it is kept.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Headers of a request with a body of `length` bytes.
fn headers(length: usize) -> String {
    format!(
        "POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

#[test]
fn invalid_bodies_are_rejected_by_field() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&[]));
    let with = |field: &str, value: &str| {
        let start = r#"{"model": "tiny", "prompt": "cat", "max_tokens": 2"#;
        match field {
            "prompt" => format!(r#"{{"model": "tiny", "prompt": {value}}}"#),
            _ => format!(r#"{start}, "{field}": {value}}}"#),
        }
    };
    while_serving_another(&server, || {
        for (field, value) in [
            ("temperature", "-1"),
            ("temperature", "\"warm\""),
            ("temperature", "[]"),
            ("top_p", "-0.5"),
            ("top_k", "-2"),
            ("top_k", "18446744073709551616"),
            ("min_p", "2"),
            ("n", "-1"),
            ("n", "1000000"),
            ("seed", "1.5"),
            ("stop", "{}"),
            ("stream", "1"),
            ("presence_penalty", "-100"),
            ("logit_bias", "{\"-1\": 1}"),
            ("logit_bias", "[1]"),
            ("prompt", "{}"),
            ("prompt", "[-1]"),
            ("prompt", "[99999999999]"),
        ] {
            let (status, text) = server.request("POST", TEXT, &with(field, value));
            let error = serde_json::from_str::<Value>(&text).unwrap()["error"].take();
            assert_eq!(status, 400, "{field} {value}: {text}");
            assert!(error["param"].as_str().unwrap().starts_with(field), "{field} {value}: {text}");
            assert!(error["message"].as_str().unwrap().contains(field), "{field} {value}: {text}");
        }
        // Invalid JSON has no fields: the error has line and column.
        for value in ["NaN", "-Infinity", "1e999", "01", "'x'", "\"\u{1}\""] {
            let (status, text) = server.request("POST", TEXT, &with("temperature", value));
            assert!(status == 400 && text.contains("line 1 column"), "{value}: {status} {text}");
        }
        for body in [
            &b"{\"model\": \"tiny\", \"prompt\": \"\xff\xfe\"}"[..],
            b"{\"model\": \"tiny\", \"prompt\": \"\\ud800\"}",
            b"\xef\xbb\xbf{}",
            b"{\"model\"",
            b"\0\0\0\0",
            b"",
        ] {
            let text = send_raw(&server, &[headers(body.len()).as_bytes(), body]);
            assert!(text.starts_with("HTTP/1.1 400 ") && text.contains("invalid_request_error"), "{text}");
        }
    });
}

#[test]
fn large_bodies_and_headers_are_rejected() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&[]));
    let before = server.metric("indrik_process_resident_memory_bytes");
    let large = vec![b' '; 100 << 20];
    while_serving_another(&server, || {
        let text = send_raw(&server, &[headers(large.len()).as_bytes(), &large]);
        assert!(text.starts_with("HTTP/1.1 413 ") && text.contains("body_too_large"), "{text}");
        // The same without a Content-Length.
        let chunked = format!(
            "POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
            large.len()
        );
        let text = send_raw(&server, &[chunked.as_bytes(), &large, b"\r\n0\r\n\r\n"]);
        assert!(text.starts_with("HTTP/1.1 413 ") && text.contains("body_too_large"), "{text}");

        let start = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
        let many: String = (0..10_000).map(|n| format!("X-{n}: y\r\n")).collect();
        let long = format!("X: {}\r\n", "y".repeat(1 << 20));
        // A header without an end.
        let endless = "y".repeat(1 << 20);
        for more in [many + "\r\n", long + "\r\n", endless] {
            let text = send_raw(&server, &[start.as_bytes(), more.as_bytes()]);
            assert!(text.starts_with("HTTP/1.1 431 "), "{text:?}");
        }
        for invalid in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS handshake\r\n\r\n"[..],
            b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX\xff\x00: y\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        ] {
            let text = send_raw(&server, &[invalid]);
            assert!(text.starts_with("HTTP/1.1 400 "), "{:?}: {text:?}", String::from_utf8_lossy(invalid));
        }
    });
    // Memory grows by less than one of these bodies.
    let grown = server.metric("indrik_process_resident_memory_bytes").saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
}

#[test]
fn slow_and_silent_clients_are_disconnected() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&["--header-timeout", "1s", "--body-timeout", "1s"]));
    let files = server.idle_files();
    while_serving_another(&server, || {
        let connect = |start: &dyn Fn() -> String| -> Vec<TcpStream> {
            let open = |_| {
                let mut stream = server.connect();
                stream.write_all(start().as_bytes()).unwrap();
                stream
            };
            (0..30).map(open).collect()
        };
        // Nothing at all, partial headers, a partial body.
        let mut silent = connect(&String::new);
        let mut partial_headers = connect(&|| format!("POST {TEXT} HTTP/1.1\r\nX: y"));
        let mut bodies = connect(&|| headers(1000) + "{\"model\": ");
        // A byte now and then does not extend the timeout.
        let deadline = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < deadline {
            for stream in partial_headers.iter_mut().chain(&mut bodies) {
                // The connection may be closed by now.
                let _ = stream.write_all(b" ");
            }
            thread::sleep(Duration::from_millis(100));
        }
        assert!(silent.iter_mut().chain(&mut partial_headers).all(|stream| read_to_close(stream).is_empty()));
        for stream in &mut bodies {
            let text = read_to_close(stream);
            assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
        }
        // A client that shuts down its side has sent no request, or not all of one.
        for half in ["", "GET /hea", &headers(1000)] {
            let mut stream = server.connect();
            stream.write_all(half.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let text = read_to_close(&mut stream);
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 400 "), "{half:?}: {text}");
        }
    });
    server.wait_for_files(&files);
    assert_eq!(server.metric("indrik_kv_cache_pages_used"), 0);
}

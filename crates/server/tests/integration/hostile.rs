//! Clients that are slow, silent or gone must not make others wait.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Fixture, HttpResponse, Mock, chat};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::json;
use server::Config;

const CHAT: &str = "/v1/chat/completions";

/// Longer than any test waits: what waits for this never comes.
const NEVER: Duration = Duration::from_secs(3600);

/// A connection whose reads give up only if the server is stuck.
fn connect(server: &Fixture) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1800))).unwrap();
    stream
}

/// Everything received until the connection is closed.
fn read_to_close(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the server closes the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The status line and headers of a response.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a response");
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn head(length: usize) -> String {
    format!(
        "POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// A chat request as it is sent.
fn chat_text(more: serde_json::Value) -> String {
    let body = chat(more).to_string();
    head(body.len()) + &body
}

/// Limits that only run out if the server waits for what never comes.
fn patient() -> Config {
    Config { body_timeout: NEVER, header_timeout: NEVER, stall_timeout: NEVER, ..Config::default() }
}

#[test]
fn slow_bodies_do_not_delay_others() {
    let server = Fixture::with_config(Mock::new(), patient());
    let size = 4 << 20;
    // 48 MiB of bodies that lack their last bytes, more than the budget of 32 MiB.
    let slow: Vec<TcpStream> = (0..12).map(|_| connect(&server)).collect();
    std::thread::scope(|scope| {
        for stream in &slow {
            let mut stream = stream;
            scope.spawn(move || {
                let _ = write!(stream, "{}{}", head(size), " ".repeat(size - 13));
            });
        }
        // A small request needs nothing of the budget.
        for _ in 0..20 {
            assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200);
        }
    });
    // A large one takes the memory of the slowest. Until the others lack nothing but their last bytes, all wait for memory, and
    // any of them may be refused.
    let large = chat(json!({ "user": "x".repeat(3 << 20) }));
    let status = std::iter::repeat_with(|| server.post(CHAT, &large).status).find(|status| *status != 429);
    assert_eq!(status, Some(200));
    // Some of the slow ones were dropped, and were told why.
    for stream in &slow {
        stream.set_nonblocking(true).unwrap();
    }
    let status = |stream: &TcpStream| {
        let mut start = [0; 12];
        (stream.peek(&mut start).ok()? == start.len()).then_some(start)
    };
    while slow.iter().all(|stream| status(stream).is_none()) {
        std::thread::yield_now();
    }
    let statuses: Vec<_> = slow.iter().filter_map(status).collect();
    for start in &statuses {
        let expected = [b"HTTP/1.1 408", b"HTTP/1.1 429"];
        assert!(expected.contains(&start), "{}", String::from_utf8_lossy(start));
    }
    assert!(statuses.len() < slow.len(), "all were dropped");
}

#[test]
fn silent_idle_and_slow_connections_give_way() {
    let config = Config { max_connections: 8, ..patient() };
    let server = Fixture::with_config(Mock::new(), config);
    let request = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    for start in ["", "GET /health HT", request, &(head(1000) + "{")] {
        let mut held: Vec<TcpStream> = (0..60)
            .map(|_| {
                let mut stream = connect(&server);
                stream.write_all(start.as_bytes()).unwrap();
                stream
            })
            .collect();
        for _ in 0..3 {
            assert_eq!(server.get("/health").status, 200, "{start:?}");
            assert_eq!(server.post(CHAT, &chat(json!({}))).status, 200, "{start:?}");
        }
        // Some of them made room. Which ones depends on when a busy machine came to read them.
        let deadline = Instant::now() + Duration::from_secs(1800);
        while !held.iter_mut().any(is_closed) {
            assert!(Instant::now() < deadline, "{start:?}: all of them are still open");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Whether the server has closed a connection; reads what has arrived.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn probes_are_answered_while_all_connections_have_requests() {
    let mut mock = Mock::new();
    mock.delay = NEVER;
    let server = Fixture::with_config(mock, Config { max_connections: 4, ..patient() });
    let mut clients: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
    for client in &mut clients {
        client.write_all(chat_text(json!({})).as_bytes()).unwrap();
    }
    server.wait_live(4);
    let got = server.post(CHAT, &chat(json!({})));
    got.error(503, "too_many_connections");
    assert!(got.headers.contains_key("retry-after"));
    for path in ["/health", "/ready", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    drop(clients.pop());
    server.wait_live(3);
}

#[test]
fn refusals_come_before_the_body() {
    let config = Config { api_keys: vec!["key".to_owned()], ..patient() };
    let server = Fixture::with_config(Mock::new(), config);
    let json = "Content-Type: application/json\r\n";
    let key = "Authorization: Bearer key\r\n";
    let cases = [
        (CHAT, json.to_owned(), 1000, 401),
        ("/v2", format!("{json}{key}"), 1000, 404),
        ("/health", String::new(), 1000, 405),
        (CHAT, key.to_owned(), 1000, 415),
        (CHAT, format!("{json}{key}"), 100_000_000_000_u64, 413),
        (CHAT, format!("{json}{key}"), 1 << 62, 413),
        (CHAT, format!("{json}{key}Content-Encoding: zstd\r\n"), 1000, 415),
        (CHAT, format!("{json}{key}Content-Encoding: gzip, gzip\r\n"), 1000, 415),
        (CHAT, format!("{json}{key}Content-Encoding: gzip\r\nContent-Encoding: br\r\n"), 1000, 415),
    ];
    for (path, headers, length, status) in cases {
        for expect in ["", "Expect: 100-continue\r\n"] {
            let mut client = connect(&server);
            write!(
                client,
                "POST {path} HTTP/1.1\r\nHost: x\r\n{headers}{expect}Content-Length: {length}\r\n\r\n"
            )
            .unwrap();
            let response = read_head(&mut client);
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {expect}: {response}");
            let accepted = response.contains("\r\naccept-encoding: gzip, deflate, identity\r\n");
            assert_eq!(accepted, headers.contains("Encoding"), "{response}");
        }
    }
    // A request that is not refused is told to go on.
    let mut client = connect(&server);
    let body = chat(json!({})).to_string();
    write!(
        client,
        "POST {CHAT} HTTP/1.1\r\nHost: x\r\n{json}{key}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 100 "));
    client.write_all(body.as_bytes()).unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn post_encoded(server: &Fixture, encoding: &str, body: &[u8]) -> HttpResponse {
    server.post_bytes(CHAT, body, ("content-encoding", encoding))
}

#[test]
fn compressed_bodies_are_decoded() {
    let server = Fixture::new();
    // Longer than the buffer of the decoder.
    for user in ["x".to_owned(), (0..100_000).map(|n| n.to_string()).collect()] {
        let body = chat(json!({ "user": user })).to_string();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
        zlib.write_all(body.as_bytes()).unwrap();
        let zlib = zlib.finish().unwrap();
        for (encoding, body) in
            [("gzip", gzip(body.as_bytes())), ("X-GZIP", gzip(body.as_bytes())), ("deflate", zlib)]
        {
            let response = post_encoded(&server, encoding, &body);
            assert_eq!(response.status, 200, "{encoding}: {}", response.body);
        }
        assert_eq!(post_encoded(&server, "identity", body.as_bytes()).status, 200);
    }
    let (message, param) = post_encoded(&server, "zstd", b"x").error(415, "unsupported_encoding");
    assert!(message.contains("'Content-Encoding: zstd'") && message.contains("gzip"), "{message}");
    assert_eq!(param, json!(null));
}

#[test]
fn corrupt_compressed_bodies_are_refused() {
    let server = Fixture::new();
    let body = gzip(chat(json!({})).to_string().as_bytes());
    let mut wrong_sum = body.clone();
    wrong_sum[body.len() - 8] ^= 1;
    let mut wrong_data = body.clone();
    wrong_data[12] ^= 0xff;
    let two = [&body[..], &body].concat();
    for (body, problem) in [
        (&b""[..], "incomplete"),
        (b"{}", "corrupt"),
        (&body[..body.len() - 1], "incomplete"),
        (&wrong_sum, "corrupt"),
        (&wrong_data, ""),
        (&two, "after its end"),
    ] {
        let (message, _) = post_encoded(&server, "gzip", body).error(400, "invalid_encoding");
        assert!(message.contains("gzip") && message.contains(problem), "{message}");
    }
    // Not JSON when it is decoded.
    post_encoded(&server, "gzip", &gzip(b"{")).error(400, "invalid_value");
}

/// What a body decodes to counts against the limits, and decoding stops there.
#[test]
fn decoded_bytes_count_against_the_limits() {
    let server = Fixture::with_config(Mock::new(), patient());
    let limit = Config::default().max_body_bytes;
    let bomb = gzip(&vec![b' '; 64 * limit]);
    assert!(bomb.len() < limit / 8);
    post_encoded(&server, "gzip", &bomb).error(413, "body_too_large");
    // The limit itself is allowed.
    let body = chat(json!({})).to_string();
    let padded = format!("{body}{}", " ".repeat(limit - body.len()));
    assert_eq!(post_encoded(&server, "gzip", &gzip(padded.as_bytes())).status, 200);
    post_encoded(&server, "gzip", &gzip(format!("{padded} ").as_bytes())).error(413, "body_too_large");
    // Stored blocks without data decode to nothing, but their own length counts too.
    let mut nothing = gzip(b"")[..10].to_vec();
    nothing.extend([0, 0, 0, 0xff, 0xff].repeat(limit / 5));
    let mut client = connect(&server);
    let headers =
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n";
    write!(client, "POST {CHAT} HTTP/1.1\r\nHost: x\r\n{headers}\r\n{:x}\r\n", nothing.len()).unwrap();
    client.write_all(&nothing).unwrap();
    client.write_all(b"\r\n0\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 413 "));

    // Twelve bodies of 4 MiB that lack their last bytes: more than the memory for bodies.
    let mut slow: Vec<TcpStream> = (0..12).map(|_| connect(&server)).collect();
    let padded = gzip(padded.as_bytes());
    for stream in &mut slow {
        let head = head(padded.len()).replace("\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&padded[..padded.len() - 4]).unwrap();
    }
    assert_eq!(post_encoded(&server, "gzip", &padded).status, 200);
    let is_refused = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let mut start = [0; 12];
        let refused = stream.read_exact(&mut start).is_ok();
        assert!(!refused || [b"HTTP/1.1 408", b"HTTP/1.1 429"].contains(&&start), "{start:?}");
        refused
    };
    let deadline = Instant::now() + Duration::from_secs(1800);
    while !slow.iter_mut().any(is_refused) {
        assert!(Instant::now() < deadline, "none gave way");
    }
}

/// A client that sends all of its body before it reads must not find the connection reset.
#[test]
fn bodies_of_refused_requests_are_discarded() {
    let config = Config { api_keys: vec!["key".to_owned()], ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    for (path, status) in [(CHAT, "401"), ("/v2", "404"), ("/health", "405")] {
        for close in ["", "Connection: close\r\n"] {
            let mut client = connect(&server);
            write!(client, "POST {path} HTTP/1.1\r\nHost: x\r\n{close}Content-Length: 40000000\r\n\r\n")
                .unwrap();
            for _ in 0..400 {
                client.write_all(&[b' '; 100_000]).unwrap();
            }
            let response = read_head(&mut client);
            assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{response}");
        }
    }
}

#[test]
fn a_connection_survives_a_refusal() {
    let server = Fixture::new();
    let mut client = connect(&server);
    for _ in 0..3 {
        write!(client, "POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nabcde").unwrap();
        let head = read_head(&mut client);
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        client.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
    }
}

#[test]
fn only_names_of_this_machine_are_served_against_dns_rebinding() {
    let get = |server: &Fixture, host: &str| {
        let mut client = connect(server);
        write!(client, "GET /v1/models HTTP/1.1\r\n{host}Connection: close\r\n\r\n").unwrap();
        read_to_close(&mut client)
    };
    let config = Config { allowed_hosts: Some(vec!["chat.example".to_owned()]), ..Config::default() };
    let server = Fixture::with_config(Mock::new(), config);
    for host in ["localhost", "127.0.0.1:8006", "[::1]:8006", "chat.example:80"] {
        let response = get(&server, &format!("Host: {host}\r\n"));
        assert!(response.starts_with("HTTP/1.1 200 "), "{host}: {response}");
    }
    let response = get(&server, "Host: evil.example\r\n");
    assert!(
        response.starts_with("HTTP/1.1 403 ") && response.contains("--allow-host evil.example"),
        "{response}"
    );
    // It is logged and counted like other refusals.
    assert!(response.contains("\r\nx-request-id: "), "{response}");
    server.wait_metric("indrik_http_requests_total{outcome=\"host_not_allowed\"} 1");
    let any = Fixture::new();
    assert!(get(&any, "Host: evil.example\r\n").starts_with("HTTP/1.1 200 "));
    for server in [&server, &any] {
        for host in ["", "Host: localhost\r\nHost: localhost\r\n"] {
            let response = get(server, host);
            assert!(response.starts_with("HTTP/1.1 400 ") && response.contains("invalid_host"), "{response}");
        }
    }
}

#[test]
fn a_client_that_closes_its_side_gets_its_response() {
    let mut mock = Mock::new();
    mock.delay = Duration::from_millis(300);
    let server = Fixture::with_config(mock, patient());
    for stream in [false, true] {
        let mut client = connect(&server);
        client.write_all(chat_text(json!({ "stream": stream, "max_tokens": 3 })).as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let response = read_to_close(&mut client);
        // An interim response may come first; clients skip it.
        let response = response.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&response);
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(response.contains("\"finish_reason\":\"length\""), "{response}");
    }
}

#[test]
fn a_client_that_is_gone_is_noticed() {
    let mut mock = Mock::new();
    mock.delay = NEVER;
    let server = Fixture::with_config(mock, patient());
    for stream in [false, true] {
        let mut client = connect(&server);
        client.write_all(chat_text(json!({ "stream": stream })).as_bytes()).unwrap();
        server.wait_live(1);
        drop(client);
        server.wait_live(0);
    }
}

/// The check for clients that are gone must go on after a body that took its time.
#[test]
fn a_client_that_is_gone_after_a_slow_body_is_noticed() {
    let mut mock = Mock::new();
    mock.delay = NEVER;
    let server = Fixture::with_config(mock, patient());
    let text = chat_text(json!({}));
    let (start, rest) = text.split_at(text.len() - 10);
    let mut client = connect(&server);
    client.write_all(start.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(400));
    client.write_all(rest.as_bytes()).unwrap();
    server.wait_live(1);
    drop(client);
    server.wait_live(0);
}

#[test]
fn draining_finishes_requests_and_answers_probes_until_the_end() {
    let mut mock = Mock::new();
    mock.delay = Duration::from_secs(1);
    let mut server = Fixture::with_config(mock, patient());
    let running = server.running.take().unwrap();
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| server.chunks(CHAT, &chat(json!({ "stream": true }))));
        server.wait_live(1);
        server.handle.drain();
        // The port stays open: what watches the server sees that it is alive, but takes no requests.
        assert_eq!(server.get("/health").status, 200);
        let (message, _) = server.get("/ready").error(503, "not_ready");
        assert!(message.contains("shutting down"), "{message}");
        let got = server.post(CHAT, &chat(json!({})));
        got.error(503, "not_ready");
        assert_eq!(got.headers["connection"], "close");
        let chunks = stream.join().unwrap();
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    });
    server.runtime.block_on(running).unwrap();
    assert!(TcpStream::connect(server.address).is_err());
}

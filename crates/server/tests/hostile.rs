//! Clients that are slow, silent or gone must not make others wait.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use common::{Fixture, Mock, chat};
use serde_json::json;
use server::Config;

const CHAT: &str = "/v1/chat/completions";

/// Longer than any test waits: what waits for this never comes.
const NEVER: Duration = Duration::from_secs(3600);

/// A connection whose reads give up only if the server is stuck.
fn connect(server: &Fixture) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
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
    let mut slow: Vec<TcpStream> = (0..12).map(|_| connect(&server)).collect();
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
        // A large one takes the memory of the slowest.
        let large = chat(json!({ "user": "x".repeat(3 << 20) }));
        assert_eq!(server.post(CHAT, &large).status, 200);
    });
    // Some of the slow ones were dropped, and were told why.
    let mut refused = 0;
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        let mut start = [0; 12];
        if stream.read_exact(&mut start).is_ok() {
            assert!(
                [b"HTTP/1.1 408", b"HTTP/1.1 429"].contains(&&start),
                "{}",
                String::from_utf8_lossy(&start)
            );
            refused += 1;
        }
    }
    assert!((1..12).contains(&refused), "{refused}");
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
        // The first to come was the first to go.
        let _ = held[0].read_to_end(&mut Vec::new());
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
    mock.delay = Duration::from_millis(500);
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

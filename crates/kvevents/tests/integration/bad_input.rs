//! Peers that do not keep to the protocol are disconnected, and do not disturb others.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use kvevents::{Limits, Publisher};
use model::pages::PageEventQueue;
use proptest::{collection::vec, prelude::*};

use crate::{
    Follower, Server, log, options,
    subscriber::{Connection, subscribe},
};

/// Waits until the other side closes a connection, and returns what it sent.
fn closed(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = vec![];
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Whether a subscriber is served.
fn serves(server: &Server) {
    let mut follower = Follower::join(server, 1);
    drop(server.prefill(&[7; 9]));
    follower.follow(server.published().batches);
    assert_eq!(follower.tree.blocks(), server.blocks());
    server.pages.clear_prefix_cache();
}

/// Waits until the other side closes a connection, and says why in its log. Returns what it sent.
fn closed_for(stream: TcpStream, cause: &str) -> Vec<u8> {
    let address = stream.local_addr().unwrap();
    let bytes = closed(stream);
    let line = log::line_about(address);
    assert!(line.contains(cause), "{line}, not: {cause}");
    bytes
}

#[test]
fn peers_that_do_not_speak_zmtp_3_are_disconnected() {
    log::start();
    let server = Server::start(1000, Limits::default());
    for (address, socket) in [(server.events(), "KV events"), (server.replay(), "replays of KV events")] {
        for (bytes, cause) in [
            (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], "it does not speak ZeroMQ's protocol"),
            (&[0; 64], "it does not speak ZeroMQ's protocol"),
            // Version 1 begins with the length of an identity; version 2 and PLAIN are refused.
            (b"\x01\0", "it does not speak ZeroMQ's protocol"),
            (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x01", "it speaks version 1 of ZeroMQ's protocol: 3 is needed"),
            (b"\xff\0\0\0\0\0\0\0\0\x7f\x02\0", "it speaks version 2 of ZeroMQ's protocol: 3 is needed"),
            (
                b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x01PLAIN\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
                "it asks for authentication, which there is none of: use the NULL mechanism",
            ),
        ] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            let sent = closed_for(stream, &format!("to the socket for {socket}: {cause}"));
            assert!(sent.is_empty() || sent.starts_with(b"\xff"), "{sent:?}");
        }
        // Half a greeting, and nothing more, disturbs nobody.
        let mut half = TcpStream::connect(address).unwrap();
        half.write_all(b"\xff\0\0\0\0\0\0\0\0\x7f\x03").unwrap();
        serves(&server);
    }
}

#[test]
fn nonsense_after_the_greeting_ends_a_connection() {
    log::start();
    let server = Server::start(1000, Limits::default());
    let long = |length: u64| [&[2][..], &length.to_be_bytes()].concat();
    let ready = |name: &str| {
        [
            b"\x04\x1b\x05READY\x0bSocket-Type"[..].to_vec(),
            (name.len() as u32).to_be_bytes().to_vec(),
            name.into(),
        ]
        .concat()
    };
    let malformed = "it sent a malformed command or message";
    for (events, bytes, cause) in [
        (true, long(u64::MAX), "it sent a frame of 18446744073709551615 bytes: the limit is 4096"),
        (true, long(5000), "it sent a frame of 5000 bytes: the limit is 4096"),
        (true, b"\x80\0".to_vec(), "it sent a frame with the flags 0x80"),
        (true, b"\x05\0".to_vec(), "it sent a frame with the flags 0x05"),
        // A message before READY, and READY with lengths that are not.
        (true, b"\0\x03\x01kv".to_vec(), "it sent handshake commands in the wrong order"),
        (true, b"\x01\0".repeat(9), "it sent a message of more than 8 frames"),
        (true, b"\x04\x07\x05READY\xff".to_vec(), malformed),
        (false, b"\x04\x0a\x05READY\x01a\xff\xff".to_vec(), malformed),
    ] {
        let address = if events { server.events() } else { server.replay() };
        let mut connection = Connection::greet(address, 1);
        connection.stream.write_all(&bytes).unwrap();
        closed_for(connection.stream, cause);
    }
    // A second READY.
    let mut connection = Connection::open(server.events(), "SUB", 1);
    connection.command(b"\x05READY");
    closed_for(connection.stream, "it sent handshake commands in the wrong order");
    // The length of the READY above is that of "PUSH", and the peer is told why.
    let mut connection = Connection::greet(server.events(), 1);
    let mut bytes = ready("PUSH");
    bytes[1] = (bytes.len() - 2) as u8;
    connection.stream.write_all(&bytes).unwrap();
    let sent = closed_for(connection.stream, "its socket has another type than SUB for events");
    assert!(sent.ends_with(b"\x05ERROR\x13Invalid socket type"), "{sent:?}");

    // Requests for a replay that are none.
    for frames in
        [&[&b"1234567"[..]][..], &[b"x", b"12345678"], &[b"", b"", b"12345678"], &[b""], &[b"123456789"]]
    {
        let mut connection = Connection::open(server.replay(), "DEALER", 1);
        connection.message(frames);
        assert!(connection.next_message().is_none(), "{frames:?}");
        closed_for(connection.stream, malformed);
    }
    // Subscriptions without end.
    let mut connection = Connection::open(server.events(), "SUB", 1);
    let many: Vec<u8> = (0..2000).flat_map(|_| *b"\x04\x0b\x09SUBSCRIBEk").collect();
    let _ = connection.stream.write_all(&many);
    closed_for(connection.stream, "it has too many subscriptions");
    // What an honest peer of a later version may send is ignored.
    let mut connection = subscribe(server.events(), b"kv@", 1);
    connection.command(b"\x05FUTURE"[..6].as_ref());
    connection.message(&[b"\x07hello"]);
    connection.message(&[b"\x01a", b"b"]);
    connection.synchronize();
    serves(&server);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(prop_oneof![0..8_u8, any::<u8>()], 0..2000)) {
        let server = Server::start(1000, Limits::default());
        for address in [server.events(), server.replay()] {
            let mut connection = Connection::open(address, if address == server.events() { "SUB" } else { "REQ" }, 1);
            let _ = connection.stream.write_all(&bytes);
            let _ = connection.stream.shutdown(std::net::Shutdown::Write);
            closed(connection.stream);
        }
        serves(&server);
    }
}

#[test]
fn a_subscriber_that_never_reads_is_disconnected_and_others_miss_nothing() {
    let server = Server::start(1_000_000, Limits { high_water_mark: 10, ..Limits::default() });
    let mut reader = Follower::join(&server, 1);
    let mut sleeper = subscribe(server.events(), b"", 1);
    assert_eq!(server.published().subscribers, 2);
    let mut round = 0;
    while server.published().dropped_subscribers == 0 {
        round += 1;
        drop(server.prefill(&[round; 48]));
        reader.follow(server.published().batches);
    }
    assert_eq!(reader.tree.blocks(), server.blocks());
    server.wait_for(|stats| stats.subscribers == 1);
    // It has what was sent until then, and the end.
    let mut next = None;
    while let Some((_, sequence, _)) = sleeper.next_batch() {
        assert!(next.is_none_or(|next| next == sequence));
        next = Some(sequence + 1);
    }
    // With a replay it knows everything again.
    assert_eq!(Follower::join(&server, 0).tree.blocks(), server.blocks());
}

#[test]
fn more_connections_than_allowed_are_closed_and_the_next_one_is_served() {
    log::start();
    let server = Server::start(1000, Limits { connections: 2, ..Limits::default() });
    let first = subscribe(server.events(), b"", 1);
    let second = subscribe(server.events(), b"", 1);
    let third = TcpStream::connect(server.events()).unwrap();
    assert_eq!(closed_for(third, "for KV events: the limit of 2 connections is reached"), b"");
    drop(first);
    server.wait_for(|stats| stats.subscribers == 1);
    drop(second);
    server.wait_for(|stats| stats.subscribers == 0);
    // The place of a connection is free a moment after it is counted no more.
    while closed_at_once(server.events()) {}
    serves(&server);
}

/// Whether a new connection is refused.
fn closed_at_once(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.read_exact(&mut [0; 64]).is_err()
}

#[test]
fn an_address_in_use_is_an_error_with_its_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let start = |events, replay| {
        let options = kvevents::Options { events, replay: Some(replay), ..options(Limits::default()) };
        Publisher::start(options, PageEventQueue::new(1)).err().unwrap()
    };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    for error in [start(address, free), start(free, address)] {
        assert_eq!(error.address, Some(address));
        assert!(
            error.to_string().contains(&address.to_string()) && error.to_string().contains("in use"),
            "{error}"
        );
    }
}

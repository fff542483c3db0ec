//! The end of a publisher: subscribers get the last events, and nobody keeps it.

use std::{io::Write, net::Shutdown, time::Duration};

use kvevents::Limits;
use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::{
    Server,
    subscriber::{Connection, Tree, subscribe},
};

/// Generous for a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// More than the system keeps for a connection whose peer does not read: 4 MiB on the server's side, unless it is
/// configured otherwise, and the little that [`subscribe_with_small_buffer`] allows.
const BYTES: usize = 6 << 20;

/// A subscriber that reads late.
fn subscribe_with_small_buffer(server: &Server, minor: u8) -> Connection {
    let connection = subscribe(server.events(), b"", minor);
    set_socket_recv_buffer_size(&connection.stream, 1 << 14).unwrap();
    connection
}

/// Reads up to the end of the stream: sequence numbers and payloads. After each batch this is sent.
fn read_all(connection: &mut Connection, sent: &[u8]) -> Vec<(u64, Vec<u8>)> {
    set_socket_recv_buffer_size(&connection.stream, 1 << 22).unwrap();
    let mut batches = vec![];
    while let Some((_, sequence, payload)) = connection.next_batch() {
        batches.push((sequence, payload));
        // Fails if the other side has closed the connection.
        let _ = connection.stream.write_all(sent);
    }
    batches
}

/// Publishes this many bytes to each subscriber. Returns the number of batches.
fn publish(server: &Server, bytes: usize) -> u64 {
    let mut reader = subscribe(server.events(), b"", 1);
    let (mut sent, mut next, mut round) = (0, None, 0);
    while sent < bytes {
        for _ in 0..50 {
            round += 1;
            drop(server.prefill(&[round; 48]));
        }
        let published = server.published().batches;
        while next.is_none_or(|next| next < published) {
            let (_, sequence, payload) = reader.next_batch().expect("the connection stays open");
            (sent, next) = (sent + payload.len(), Some(sequence + 1));
        }
    }
    server.published().batches
}

#[test]
fn subscribers_that_read_late_get_the_last_events() {
    let limits = Limits { high_water_mark: 1 << 20, flush_timeout: LONG, ..Limits::default() };
    let server = Server::start(1_000_000, limits);
    let mut late = subscribe_with_small_buffer(&server, 1);
    let mut talker = subscribe_with_small_buffer(&server, 0);
    let mut idle = subscribe(server.events(), b"", 1);
    publish(&server, BYTES);
    server.wait_for(|stats| stats.subscribers == 3);
    // Right before the end.
    drop(server.prefill(&[1_000_000; 30]));
    let (expected, monitor) = (server.blocks(), server.publisher.monitor());
    let Server { publisher, pages: _pages, source: _source, .. } = server;
    let read = std::thread::scope(|scope| {
        scope.spawn(|| drop(publisher));
        // Bytes that arrive when the server closes the connection do not take away what it sent.
        let hello: &[u8] = b"\0\x06\x07hello";
        [(&mut late, &b""[..]), (&mut talker, hello), (&mut idle, b"")].map(|(connection, sent)| {
            let read = read_all(connection, sent);
            // Fails if the other side has done so.
            let _ = connection.stream.shutdown(Shutdown::Both);
            read
        })
    });
    for batches in read {
        let mut tree = Tree::default();
        batches.iter().for_each(|(_, payload)| tree.apply(payload));
        assert!(tree.blocks() == expected, "{:?}", batches.last());
        let first = batches[0].0;
        let numbers = batches.iter().map(|(sequence, _)| *sequence);
        assert!(numbers.eq(first..monitor.stats().batches), "all, up to the last one");
    }
}

#[test]
fn a_subscriber_that_never_reads_does_not_keep_the_publisher() {
    let limits = Limits { high_water_mark: 1 << 20, flush_timeout: Duration::ZERO, ..Limits::default() };
    let server = Server::start(1_000_000, limits);
    let mut sleeper = subscribe_with_small_buffer(&server, 1);
    let batches = publish(&server, BYTES);
    drop(server);
    // It has what was sent until then.
    let last = read_all(&mut sleeper, b"").last().map(|(sequence, _)| *sequence);
    assert!(last.is_some_and(|last| last + 1 < batches), "the rest was not waited for: {last:?}");
}

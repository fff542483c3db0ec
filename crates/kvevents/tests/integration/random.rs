//! A subscriber's tree equals the server's after random operations.

use std::convert::Infallible;

use kvevents::{Limits, Publisher};
use model::{Sequence, pages::PageKind};
use proptest::{
    prelude::RngExt,
    test_runner::{RngAlgorithm, TestRng},
};

use crate::{Follower, PAGE, Server, options, subscriber};

/// A random text; a vocabulary of two, so that texts often have a prefix in common.
fn text(random: &mut TestRng) -> Vec<u32> {
    let length = random.random_range(1..48);
    (0..length).map(|_| random.random_range(0..2)).collect()
}

fn restore(server: &Server, text: &[u32], first: usize) {
    for end in (PAGE as usize..=text.len()).step_by(PAGE as usize) {
        for kind in PageKind::ALL {
            if kind == PageKind::Full || end / PAGE as usize > first {
                let Ok::<_, Infallible>(_) = server.pages.restore(&text[..end], kind, |_| Ok(()));
            }
        }
    }
}

fn operate(server: &mut Server, running: &mut Vec<Sequence>, random: &mut TestRng) {
    let index = random.random_range(0..running.len().max(1));
    match random.random_range(0..1000) {
        0..300 => running.extend(server.prefill(&text(random))),
        300..600 => {
            if let Some(sequence) = running.get_mut(index) {
                let tokens: Vec<u32> =
                    (0..random.random_range(1..6)).map(|_| random.random_range(0..2)).collect();
                if sequence.len() + (tokens.len() as u32) < 64 {
                    server.append(sequence, &tokens);
                }
            }
        }
        600..870 if index < running.len() => drop(running.remove(index)),
        870..920 => {
            if let Some(sequence) = running.get_mut(index) {
                server.pages.truncate(sequence, random.random_range(0..48));
            }
        }
        920..995 => restore(server, &text(random), random.random_range(0..6)),
        995..998 => server.pages.clear_prefix_cache(),
        998 => {
            running.clear();
            server.lose_device();
        }
        _ => {}
    }
}

/// 10,000 operations; `queue` is the capacity of the queue of events. Returns how often it was full.
fn follow_random_operations(queue: usize) -> u64 {
    // Less than what is published, so that replays begin with a summary.
    let limits =
        Limits { replay_batches: 20, replay_blocks: 400, high_water_mark: 1_000_000, ..Limits::default() };
    let mut server = Server::start(queue, limits);
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut running = vec![];
    let mut followers = vec![Follower::join(&server, 0)];
    let mut sizes = vec![];
    for round in 0..20 {
        for _ in 0..500 {
            operate(&mut server, &mut running, &mut random);
        }
        let batches = server.published().batches;
        // One that comes late, and one that missed all batches of this round.
        followers.push(Follower::join(&server, 1));
        let mut missed = Follower::join(&server, 1);
        missed.connection = subscriber::subscribe(server.events(), b"", 1);
        for _ in 0..10 {
            operate(&mut server, &mut running, &mut random);
        }
        assert!(server.published().batches >= batches);
        let from = missed.next;
        missed.replay(&server, from);
        followers.push(missed);
        let (batches, blocks) = (server.published().batches, server.blocks());
        for follower in &mut followers {
            follower.follow(batches);
            assert_eq!(follower.tree.blocks(), blocks, "round {round}");
            assert!(follower.next == batches && (blocks.is_empty() || follower.tree.kinds.len() <= 2));
        }
        sizes.push(blocks.len());
        followers.truncate(1);
    }
    assert!(
        followers[0].tree.cleared > 10 && sizes.iter().filter(|size| **size > 10).count() > 10,
        "{sizes:?}"
    );
    let stats = server.published();
    assert_eq!(stats.dropped_subscribers, 0);
    stats.overflows
}

#[test]
fn a_subscribers_tree_is_the_servers_after_10_000_operations() {
    assert_eq!(follow_random_operations(1_000_000), 0);
}

#[test]
fn a_subscribers_tree_is_the_servers_after_overflows_of_the_queue() {
    assert!(follow_random_operations(8) > 10);
}

#[test]
fn subscriptions_choose_by_the_beginning_of_the_topic() {
    let server = Server::start(1000, Limits::default());
    let first = server.published().batches;
    let mut whole = subscriber::subscribe(server.events(), crate::TOPIC.as_bytes(), 1);
    let mut other = subscriber::subscribe(server.events(), b"kv@127.0.0.1:8007", 1);
    let mut cancelled = subscriber::subscribe(server.events(), b"kv@", 1);
    // Twice, and cancelled once: it is still there.
    for command in [&b"\x09SUBSCRIBEkv@"[..], b"\x06CANCELkv@", b"\x06CANCELnever"] {
        cancelled.command(command);
    }
    cancelled.synchronize();
    drop(server.prefill(&[1; 9]).unwrap());
    let batches = server.published().batches;
    assert_eq!(whole.next_batch().unwrap().1, first);
    assert_eq!(cancelled.next_batch().unwrap().1, first);
    // The messages of version 3.0 work as well.
    cancelled.message(&[b"\0kv@"]);
    other.message(&[b"\x01kv@127.0.0.1:8006"]);
    cancelled.synchronize();
    other.synchronize();
    drop(server.prefill(&[2; 9]).unwrap());
    assert!(server.published().batches > batches);
    assert_eq!(other.next_batch().unwrap().1, batches);
    drop(server.publisher);
    assert!(cancelled.next_batch().is_none(), "nothing more, then the end");
}

#[test]
fn a_publisher_that_ends_publishes_the_rest() {
    let server = Server::start(1000, Limits::default());
    let mut follower = Follower::join(&server, 1);
    drop(server.prefill(&[1; 9]).unwrap());
    let blocks = server.blocks();
    assert_eq!(blocks.len(), 4);
    let Server { publisher, pages, source, queue } = server;
    drop(publisher);
    while let Some((_, _, payload)) = follower.connection.next_batch() {
        follower.tree.apply(&payload);
    }
    assert_eq!(follower.tree.blocks(), blocks);
    drop((source, pages));
    // Its address is free again.
    assert!(Publisher::start(options(Limits::default()), queue).is_ok());
}

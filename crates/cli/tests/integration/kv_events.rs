//! KV events of a real server: a subscriber knows from them alone what the prefix cache holds.

use std::{collections::BTreeSet, net::SocketAddr, net::TcpListener};

use serde_json::{Value, json};

use crate::{
    common::{
        indrik,
        served::{Served, has_device, serve, tiny},
        stderr,
    },
    subscriber::{Connection, Tree, replay, subscribe},
};

/// Tokens per page.
const PAGE: usize = 64;

fn address(server: &Served, key: &str) -> SocketAddr {
    let url = server.report[key].as_str().unwrap();
    url.strip_prefix("tcp://").unwrap().parse().unwrap()
}

/// A subscriber of a server.
struct Follower {
    connection: Connection,
    tree: Tree,
    next: u64,
}

impl Follower {
    /// Knows what was published before through a replay.
    fn join(server: &Served, minor: u8) -> Follower {
        let connection = subscribe(address(server, "kv_events"), b"kv@", minor);
        let mut follower = Follower { connection, tree: Tree::default(), next: 0 };
        let topic = format!("kv@{}@tiny", server.address);
        for (of, sequence, payload) in replay(address(server, "kv_events_replay"), 0) {
            assert_eq!((String::from_utf8(of).unwrap(), sequence), (topic.clone(), follower.next));
            follower.tree.apply(&payload);
            follower.next += 1;
        }
        follower
    }

    /// Reads everything that has been published.
    fn follow(&mut self, server: &Served) {
        while server.metric("indrik_kv_events_pending") > 0 {
            std::thread::yield_now();
        }
        let batches = server.metric("indrik_kv_events_batches_total");
        while self.next < batches {
            let (_, sequence, payload) = self.connection.next_batch().unwrap();
            if sequence >= self.next {
                assert_eq!(sequence, self.next);
                self.tree.apply(&payload);
                self.next += 1;
            }
        }
    }

    /// Tokens of a prompt that the prefix cache has, by the rule of the documentation: as many full pages as there are in
    /// the full-attention layers, with those that the window reaches in the sliding-window layers.
    fn cached(&self, tokens: &[u32]) -> usize {
        let window = self.tree.kinds[&1].1.unwrap() as usize;
        let held: BTreeSet<(Vec<u32>, u64)> = self.tree.blocks();
        let holds = |page: usize, group: u64| held.contains(&(tokens[..(page + 1) * PAGE].to_vec(), group));
        let pages = self.tree.prefix(tokens, 0) / PAGE;
        let usable = |pages: &usize| {
            ((pages * PAGE + 1).saturating_sub(window) / PAGE..*pages).all(|page| holds(page, 1))
        };
        (0..=pages).rev().find(usable).unwrap() * PAGE
    }
}

/// A text; different families have nothing in common.
fn text(family: u32, len: u32) -> Vec<u32> {
    (0..len).map(|at| 10 + (at * 7 + family * 29) % 150).collect()
}

/// Tokens of a prompt that came from the prefix cache.
fn ask(server: &Served, prompt: &[u32], max_tokens: u32) -> usize {
    let body = json!({ "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0 });
    let usage: Value = server.complete(&body)["usage"].clone();
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize
}

const SOCKETS: [&str; 4] = ["--kv-events", "127.0.0.1:0", "--kv-events-replay", "tcp://127.0.0.1:0"];

#[test]
fn a_subscriber_knows_what_the_prefix_cache_holds() {
    if !has_device() {
        return;
    }
    // Memory for three texts, so that pages are evicted; a device that is lost on the way.
    let flags = ["--max-sequences", "4", "--kv-cache-tokens", "1280"];
    let mut command = serve(&[&SOCKETS[..], &flags].concat());
    let server = Served::start(command.env("INDRIK_FAULT", "device-lost@400"));
    let mut follower = Follower::join(&server, 0);
    let mut found = vec![];
    let mut probe = 0;
    let mut rounds = 0;
    while rounds < 4 || server.metric("indrik_device_lost_total") == 0 {
        rounds += 1;
        for family in 0..5 {
            let len = |family: u32| 300 + family * 20;
            ask(&server, &text(family, len(family)), 30);
            // Whole pages of an earlier text, and a token that no other text has, so that nothing after them is cached. After a
            // long answer, only the window at the end of a prompt is likely to be there.
            let of = (family + probe / 2) % 5;
            let pages = if probe % 2 == 0 { len(of) / 64 } else { 1 + probe % 4 };
            let earlier = text(of, 64 * pages);
            probe += 1;
            let prompt = [earlier, vec![170 + probe % 130]].concat();
            follower.follow(&server);
            let losses = server.metric("indrik_device_lost_total");
            let (expected, cached) = (follower.cached(&prompt), ask(&server, &prompt, 1));
            if losses == server.metric("indrik_device_lost_total") {
                assert_eq!(cached, expected, "round {rounds}, family {family}");
                found.push(cached);
            }
        }
    }
    assert!(found.contains(&0) && found.iter().filter(|cached| **cached > 64).count() > 3, "{found:?}");
    // At the start, and with the lost device, which may have been lost in the last request.
    while follower.tree.cleared < 2 {
        follower.follow(&server);
    }
    follower.follow(&server);
    // Another one that comes late knows the same.
    let late = Follower::join(&server, 1);
    assert_eq!(late.tree.blocks(), follower.tree.blocks());
    assert_eq!(server.metric("indrik_kv_events_subscribers"), 2);
    assert_eq!(server.metric("indrik_kv_events_dropped_subscribers_total"), 0);
    assert_eq!(server.metric("indrik_kv_events_overflows_total"), 0);
    // A server that ends holds nothing.
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert!(status.success() && log.contains("events   KV events at tcp://127.0.0.1:"), "{log}");
    while let Some((_, _, payload)) = follower.connection.next_batch() {
        follower.tree.apply(&payload);
    }
    assert!(follower.tree.blocks().is_empty());
}

#[test]
fn a_server_whose_sockets_are_misused_serves_on() {
    if !has_device() {
        return;
    }
    let server = Served::start(&mut serve(&SOCKETS));
    let files = server.idle_files();
    for key in ["kv_events", "kv_events_replay"] {
        for _ in 0..3 {
            let mut stream = std::net::TcpStream::connect(address(&server, key)).unwrap();
            let _ = std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n");
            let _ = std::io::Read::read_to_end(&mut stream, &mut vec![]);
        }
    }
    let mut follower = Follower::join(&server, 1);
    ask(&server, &text(1, 200), 4);
    follower.follow(&server);
    assert_eq!(follower.cached(&text(1, 200)), 192);
    drop(follower);
    server.wait_for_files(&files);
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(log.matches("does not speak ZeroMQ's protocol").count(), 1, "said once: {log}");
    assert!(status.success(), "{log}");
}

#[test]
fn addresses_that_others_reach_are_warned_about() {
    if !has_device() {
        return;
    }
    let start = |flags: &[&str]| {
        let server = Served::start(&mut serve(flags));
        server.signal("-TERM");
        server.wait().1
    };
    let log = start(&["--host=0.0.0.0", "--kv-events=tcp://*:0"]);
    assert!(log.contains("warning  KV events at 0.0.0.0:") && log.contains("set --kv-events-topic"), "{log}");
    let log = start(&["--host=0.0.0.0", "--kv-events=0", "--kv-events-topic=kv@10.0.0.7:8006@m"]);
    assert!(log.contains(", topic kv@10.0.0.7:8006@m") && !log.contains("warning  KV"), "{log}");
    assert!(!log.contains("warning  the topic"), "{log}");
}

#[test]
fn settings_of_kv_events_that_do_not_fit_are_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let (model, events) = (tiny(), "--kv-events=127.0.0.1:0");
    let embedder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/embeddings/bert_mean");
    let replay = format!("--kv-events-replay={taken}");
    for (arguments, words) in [
        (&["-m", &model, "--kv-events-replay=5558"][..], &["--kv-events-replay", "add --kv-events"][..]),
        (&["-m", &model, "--kv-events-topic=x"], &["--kv-events-topic", "add --kv-events"]),
        (&["-m", &model, events, "--prefix-cache=false"], &["remove --prefix-cache=false"]),
        (&["-m", &model, events, "--models=other"], &["one model", "without --preload and --models"]),
        (&["--models", &model, events], &["one model", "-m"]),
        (&["-m", embedder.to_str().unwrap(), events], &["embedding model"]),
        (&["-m", &model, "--kv-events", &taken], &[&taken, "another program is listening"]),
        (&["-m", &model, events, &replay], &[&taken, "another program is listening"]),
    ] {
        let output = indrik(&[&["serve", "--port", "0"], arguments].concat()).output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{arguments:?}: {text}");
    }
    let output = indrik(&["serve", "-m", &model, "--kv-events", "ipc:///tmp/x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is not an address: use IP:PORT"), "{}", stderr(&output));
}

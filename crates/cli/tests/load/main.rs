//! The real server with a tiny model under load: first more clients than there is room for, then a mixture of everything
//! with devices that are lost. `INDRIK_SOAK` says for how many seconds in all; `make soak` takes half an hour. One test, so that nothing runs
//! beside it.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod memory;
mod mixed;
mod overload;

use std::time::{Duration, Instant};

use client::Client;
use common::served::{LONG, Served, has_device, serve};
use memory::watched;
use serde_json::json;

/// Seconds in all, where nothing else is said.
const USUAL: u64 = 120;

/// Overload lasts no longer than this, and no longer than half of all.
const OVERLOAD: Duration = Duration::from_secs(60);

/// A refusal takes no longer than this, save one in a hundred: the machine may be busy with other things.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Every device is lost after so many submissions: some seconds of load.
const LOST_AFTER: &str = "device-lost@2000";

#[test]
fn it_lasts() {
    if !has_device() {
        return;
    }
    let seconds = match std::env::var("INDRIK_SOAK") {
        Ok(text) => text.parse().expect("INDRIK_SOAK is a number of seconds"),
        Err(_) => USUAL,
    };
    let all = Duration::from_secs(seconds);
    let first = OVERLOAD.min(all / 2);
    overloaded(first);
    mixed(all - first);
}

fn overloaded(time: Duration) {
    let server = Served::start(serve(&["--max-queue", "64"]).env("INDRIK_LOG", "warn"));
    let files = server.open_files();
    let (tally, memory) = watched(&server, time, || overload::run(&server.address, time));
    println!(
        "overload, {time:?}: {} answered, {} hung up, {} refused (p50 {:?}, p99 {:?}, at most {:?}); {memory}",
        tally.answered,
        tally.hung_up,
        tally.refused.len(),
        tally.percentile(50),
        tally.percentile(99),
        tally.percentile(100)
    );
    tally.check();
    assert!(tally.percentile(99) < AT_ONCE);
    memory.assert_flat();
    settle(&server, files);
    assert_eq!(server.metric("indrik_engine_requests_total{outcome=\"failed\"}"), 0);
    // Who hangs up is cancelled, where the last token was not on its way already.
    let cancelled = server.metric("indrik_engine_requests_total{outcome=\"cancelled\"}");
    assert!(cancelled * 10 >= tally.hung_up * 9, "{cancelled} of {}", tally.hung_up);
    pages_come_back(&server);
    server.signal("-TERM");
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Of all that write, each hangs up.
fn pages_come_back(server: &Served) {
    let before = server.metric("indrik_engine_requests_total{outcome=\"cancelled\"}");
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(&server.address)).collect();
    let long = json!({
        "model": "tiny", "prompt": "the cat sat", "stream": true, "max_tokens": 490,
        "logit_bias": { "1": -100, "106": -100 },
    });
    for client in &mut clients {
        assert_eq!(client.ask("/v1/completions", &long.to_string()).unwrap().status, 200);
    }
    assert!(server.metric("indrik_kv_cache_pages_used") > 0);
    drop(clients);
    eventually("pages are held by nobody", || server.metric("indrik_kv_cache_pages_used") == 0);
    let cancelled = server.metric("indrik_engine_requests_total{outcome=\"cancelled\"}") - before;
    assert!(cancelled > 0, "all answers were complete before anyone could hang up");
}

fn mixed(time: Duration) {
    let mut command = serve(&[]);
    let server = Served::start(command.env("INDRIK_LOG", "error").env("INDRIK_FAULT", LOST_AFTER));
    let files = server.open_files();
    let load = mixed::Load::new(&server.address).unwrap();
    let ((), memory) = watched(&server, time, || load.run(time));
    let tally = load.tally();
    let losses = server.metric("indrik_device_lost_total");
    println!(
        "mixed, {time:?}: {} answered, {} hung up, {} bad requests refused, {losses} devices lost ({} requests came meanwhile); {memory}",
        tally.answered, tally.hung_up, tally.refused, tally.unready
    );
    tally.check();
    assert!(losses > 0);
    memory.assert_flat();
    settle(&server, files);
    assert_eq!(server.metric("indrik_engine_requests_total{outcome=\"failed\"}"), 0);
    server.signal("-TERM");
    let (status, log) = server.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// That nothing is left of all clients.
fn settle(server: &Served, files: usize) {
    eventually("pages are held by nobody", || server.metric("indrik_kv_cache_pages_used") == 0);
    eventually("requests are left", || {
        ["indrik_requests_waiting", "indrik_requests_prefilling", "indrik_requests_decoding"]
            .iter()
            .all(|name| server.metric(name) == 0)
    });
    eventually("connections or files are left open", || server.open_files() <= files);
}

fn eventually(otherwise: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < until, "{otherwise}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

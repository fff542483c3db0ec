//! Load test of the server with a tiny model: overload, then a mixed load with lost devices. `INDRIK_SOAK`
//! sets the total time in seconds; `make soak` runs half an hour. A single test under load, so that nothing
//! else runs beside it.

mod client;
#[path = "../common/mod.rs"]
mod common;
mod memory;
mod mixed;
mod overload;

use std::time::{Duration, Instant};

use client::Client;
use common::served::{Served, TIMEOUT, has_device, serve};
use memory::watch;
use serde_json::json;

/// Default total time in seconds.
const DEFAULT_SECONDS: u64 = 40;

/// Maximum time of the overload phase; at most half of the total.
const MAX_OVERLOAD: Duration = Duration::from_secs(60);

/// Every device is lost after 2000 submissions: a few seconds of load.
const FAULT: &str = "device-lost@2000";

/// Until a device was lost, the mixed load is repeated for this time.
const EXTENSION: Duration = Duration::from_secs(10);
/// Maximum number of repetitions.
const MAX_EXTENSIONS: usize = 60;

#[test]
fn the_server_survives_sustained_load() {
    if !has_device() {
        return;
    }
    let seconds = match std::env::var("INDRIK_SOAK") {
        Ok(text) => text.parse().expect("INDRIK_SOAK is a number of seconds"),
        Err(_) => DEFAULT_SECONDS,
    };
    let total = Duration::from_secs(seconds);
    let overload = MAX_OVERLOAD.min(total / 2);
    run_overload(overload);
    run_mixed(total - overload);
}

fn run_overload(time: Duration) {
    let server = Served::start(serve(&["--max-queue", "64"]).env("INDRIK_LOG", "warn"));
    let files = server.idle_files();
    let (tally, memory) = watch(&server, time, || overload::run(&server.address, time));
    println!(
        "overload, {time:?}: {} completed, {} disconnected, {} rejected (p50 {:?}, p99 {:?}, max {:?}); {memory}",
        tally.completed,
        tally.disconnected,
        tally.rejected.len(),
        tally.percentile(50),
        tally.percentile(99),
        tally.percentile(100)
    );
    tally.check();
    memory.assert_flat();
    settle(&server, &files);
    assert_eq!(server.metric("indrik_engine_requests_total{outcome=\"failed\"}"), 0);
    // Disconnected requests are cancelled, unless their last token was already generated.
    let cancelled = server.metric("indrik_engine_requests_total{outcome=\"cancelled\"}");
    assert!(cancelled * 10 >= tally.disconnected * 9, "{cancelled} of {}", tally.disconnected);
    cancelled_requests_free_their_pages(&server);
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Fills the batch with streams and disconnects all of them.
fn cancelled_requests_free_their_pages(server: &Served) {
    let before = server.metric("indrik_engine_requests_total{outcome=\"cancelled\"}");
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(&server.address)).collect();
    let long = json!({
        "model": "tiny", "prompt": "the cat sat", "stream": true, "max_tokens": 490,
        "logit_bias": { "1": -100, "106": -100 },
    });
    for client in &mut clients {
        assert_eq!(client.request("/v1/completions", &long.to_string()).unwrap().status, 200);
    }
    assert!(server.metric("indrik_kv_cache_pages_used") > 0);
    drop(clients);
    eventually("pages are not freed", || server.metric("indrik_kv_cache_pages_used") == 0);
    let cancelled = server.metric("indrik_engine_requests_total{outcome=\"cancelled\"}") - before;
    assert!(cancelled > 0, "all requests finished before their clients disconnected");
}

fn run_mixed(time: Duration) {
    let mut command = serve(&[]);
    let server = Served::start(command.env("INDRIK_LOG", "error").env("INDRIK_FAULT", FAULT));
    let files = server.idle_files();
    let load = mixed::Load::new(&server.address).unwrap();
    let losses = || server.metric("indrik_device_lost_total");
    let ((), memory) = watch(&server, time, || {
        load.run(time);
        // On a busy machine that may have been too short for a device to be lost.
        (0..MAX_EXTENSIONS).take_while(|_| losses() == 0).for_each(|_| load.run(EXTENSION));
    });
    let tally = load.tally();
    let losses = losses();
    println!(
        "mixed, {time:?}: {} completed, {} disconnected, {} invalid requests rejected, {losses} devices lost ({} requests met a server that was not ready); {memory}",
        tally.completed, tally.disconnected, tally.rejected, tally.not_ready
    );
    tally.check();
    assert!(losses > 0);
    memory.assert_flat();
    settle(&server, &files);
    assert_eq!(server.metric("indrik_engine_requests_total{outcome=\"failed\"}"), 0);
    server.signal("-TERM");
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// Waits until no request, page or connection is left.
fn settle(server: &Served, files: &[String]) {
    eventually("pages are not freed", || server.metric("indrik_kv_cache_pages_used") == 0);
    eventually("requests are left running or waiting", || {
        ["indrik_requests_waiting", "indrik_requests_prefilling", "indrik_requests_decoding"]
            .iter()
            .all(|name| server.metric(name) == 0)
    });
    server.wait_for_files(files);
}

/// Waits for a condition; panics with `failure` after the timeout.
fn eventually(failure: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{failure}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

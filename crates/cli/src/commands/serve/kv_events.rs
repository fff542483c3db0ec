//! `--kv-events`: publishes what the prefix cache of the model holds.

use std::{io::ErrorKind, net::SocketAddr};

use anyhow::ensure;
use kvevents::{Limits, Options, Publisher, StartError};
use server::{Capability, ModelDescription};

use super::offer::Offer;

/// Changes of the prefix cache that wait to be published. About 10 MB, and more than a step can make.
pub const QUEUE: usize = 65_536;

/// Checks the settings.
pub fn check(offer: &Offer) -> anyhow::Result<()> {
    let settings = offer.settings();
    if settings.kv_events.is_none() {
        for (name, is_set) in [
            ("--kv-events-replay", settings.kv_events_replay.is_some()),
            ("--kv-events-topic", settings.kv_events_topic.is_some()),
        ] {
            ensure!(!is_set, "{name} has no effect without events: add --kv-events 127.0.0.1:5557");
        }
        return Ok(());
    }
    ensure!(settings.prefix_cache, "--kv-events needs the prefix cache: remove --prefix-cache=false");
    ensure!(
        offer.is_single() && settings.model.is_some(),
        "--kv-events is for one model, whose name is in the topic: name it with -m, without --preload and --models"
    );
    Ok(())
}

/// Starts to publish, if the settings say so, the events of this model of a server at this address.
pub fn start(
    offer: &Offer,
    model: Option<&ModelDescription>,
    address: SocketAddr,
) -> anyhow::Result<Option<Publisher>> {
    let settings = offer.settings();
    let (Some(events), Some(queue), Some(model)) = (settings.kv_events, &offer.page_events, model) else {
        return Ok(None);
    };
    ensure!(
        model.capabilities.contains(&Capability::Completion),
        "--kv-events: {} is an embedding model, which has no prefix cache",
        model.id
    );
    let topic = settings.kv_events_topic.clone().unwrap_or_else(|| format!("kv@{address}@{}", model.id));
    let options = Options {
        events: events.0,
        replay: settings.kv_events_replay.map(|replay| replay.0),
        topic,
        model: model.id.clone(),
        limits: Limits::default(),
    };
    let started = Publisher::start(options, queue.clone());
    Ok(Some(started.map_err(|error| anyhow::anyhow!(start_error(&error)))?))
}

/// Message for an address that cannot be used, with advice.
fn start_error(error: &StartError) -> String {
    let advice = match error.error.kind() {
        ErrorKind::AddrInUse => {
            "; another program is listening there: choose another port with --kv-events or --kv-events-replay"
        }
        ErrorKind::AddrNotAvailable => {
            "; this machine has no such address: check --kv-events and --kv-events-replay"
        }
        ErrorKind::PermissionDenied => "; ports below 1024 need root: choose another one",
        _ => "",
    };
    format!("{error}{advice}")
}

/// Where routers connect.
pub fn line(publisher: &Publisher) -> String {
    let replay = publisher.replay_address().map(|address| format!(", replays at tcp://{address}"));
    let topic = publisher.topic();
    format!(
        "events   KV events at tcp://{}{}, topic {topic}",
        publisher.events_address(),
        replay.unwrap_or_default()
    )
}

/// Warnings about addresses that others can reach, or cannot.
pub fn warnings(publisher: &Publisher) -> Vec<String> {
    let addresses = [Some(publisher.events_address()), publisher.replay_address()];
    let exposed = addresses.into_iter().flatten().find(|address| !address.ip().is_loopback());
    let exposed = exposed.map(|exposed| {
        format!("warning  KV events at {exposed} contain the tokens of prompts, and everyone who reaches this port can read them")
    });
    let topic = publisher.topic();
    let is_nowhere = ["kv@0.0.0.0:", "kv@[::]:"].iter().any(|nowhere| topic.starts_with(nowhere));
    let nowhere = is_nowhere.then(|| {
        format!(
            "warning  the topic of KV events, {topic}, names no address that a router knows: set --kv-events-topic"
        )
    });
    exposed.into_iter().chain(nowhere).collect()
}

//! The tests of this crate's API in one binary, which is built faster than one for each file.

mod bad_input;
mod chat;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod conversation;
mod docs;
mod embed;
mod gateway;
mod generate;
mod hostile;
mod hub;
mod inspect;
mod kv_events;
mod models;
mod monitor;
mod npu;
mod packaging;
mod pull;
mod rdna3;
mod restart;
mod run;
mod serve;
mod service;
mod several_models;
#[path = "../../../kvevents/tests/common/subscriber.rs"]
mod subscriber;
mod together;
mod versus;

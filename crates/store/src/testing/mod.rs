//! Servers for tests: [`Server`] serves fixed pages and simulates failures, [`FakeHub`] speaks the protocol of
//! the model hub.

mod fake_hub;
mod server;

pub use fake_hub::{Access, FakeFile, FakeHub, FakeRepository};
pub use server::{Fault, Handler, Page, RecordedRequest, Server, unused_address};

/// Deterministic pseudo-random bytes.
pub fn pseudo_random(count: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// The SHA-256 of some bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    crate::sha256::hash_bytes(bytes)
}

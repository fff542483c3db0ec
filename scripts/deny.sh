#!/usr/bin/env bash
# Checks licences, sources and bans of all dependencies with cargo-deny, installing it first where it is missing.
# (Advisories need a database from the network and are not part of this: `cargo deny check advisories`.)
set -euo pipefail
if ! command -v cargo-deny >/dev/null; then
  echo "deny: installing cargo-deny (a few minutes, once)"
  # Unoptimised: it runs for a second, and builds in half the time.
  cargo install --quiet --locked --debug --no-default-features cargo-deny
fi
cargo deny --log-level error check licenses bans sources

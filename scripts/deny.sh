#!/usr/bin/env bash
# Checks licences, sources and bans of all dependencies with cargo-deny, and installs cargo-deny if it is missing.
# Advisories need a database from the network and are not checked here: `cargo deny check advisories`.
set -euo pipefail
version=0.20.2 # pinned: a newer release may need a newer Rust than the workspace
if ! command -v cargo-deny >/dev/null; then
  echo "deny: installing cargo-deny $version (a minute or two, once)"
  # Unoptimised: it runs for a second and builds in half the time.
  cargo install --quiet --locked --debug --no-default-features --version "$version" cargo-deny
fi
cargo deny --log-level error check licenses bans sources

#!/usr/bin/env bash
# Checks licences, sources and bans of all dependencies with cargo-deny, and installs cargo-deny if it is missing.
# Advisories need a database from the network and are not checked here: `cargo deny check advisories`.
#
#   scripts/audit.sh               run cargo-deny and record what was checked in scripts/audited.sha256
#   scripts/audit.sh --recorded    only compare Cargo.lock and deny.toml with the record: `make lint` does, since
#                                  installing cargo-deny takes minutes and dependencies change rarely
set -euo pipefail
cd "$(dirname "$0")/.."
record=scripts/audited.sha256
case "${1:-}" in
  "") ;;
  --recorded)
    sha256sum --check --status "$record" || {
      echo "audit: Cargo.lock or deny.toml changed since the last audit of dependencies: run \`make audit\` and commit $record" >&2
      exit 1
    }
    exit 0
    ;;
  *) echo "audit: unknown option '$1' (see the head of $0)" >&2; exit 2 ;;
esac
version=0.20.2 # pinned: a newer release may need a newer Rust than the workspace
if ! command -v cargo-deny >/dev/null; then
  echo "audit: installing cargo-deny $version (a minute or two, once)"
  # Unoptimised: it runs for a second and builds in half the time.
  cargo install --quiet --locked --debug --no-default-features --version "$version" cargo-deny
fi
cargo deny --log-level error check licenses bans sources
sha256sum Cargo.lock deny.toml >"$record"

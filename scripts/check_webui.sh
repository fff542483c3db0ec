#!/usr/bin/env bash
# Checks that crates/server/webui/index.html is what `make webui` builds from web/, byte by byte, with the tools of
# web/package-lock.json, and that the sources have no type errors and pass their unit tests. Needs Node 20 with npm; without them it prints that it
# skipped, and fails under CI=true.
#
#   scripts/check_webui.sh            exit 1 if they differ
#   scripts/check_webui.sh --write    builds the web UI: `make webui`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../web"

built=../crates/server/webui/index.html

if ! command -v npm >/dev/null || ! node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)'; then
  echo "webui: no Node 20 with npm, so the web UI was not checked against web/" >&2
  [ "${CI:-}" != true ] && [ "${1:-}" != --write ] || exit 1
  exit 0
fi
# The lock is copied last, so that an interrupted installation is repeated.
if ! cmp -s package-lock.json node_modules/complete; then
  if ! npm ci --ignore-scripts --loglevel=error >&2; then
    echo "webui: npm could not install web/package-lock.json, so the web UI was not checked against web/" >&2
    [ "${CI:-}" != true ] && [ "${1:-}" != --write ] || exit 1
    exit 0
  fi
  cp package-lock.json node_modules/complete
fi

node_modules/.bin/tsc -p .
if [ "${1:-}" = --write ]; then
  node build.mjs
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
node_modules/.bin/esbuild tests/unit.test.ts --bundle --platform=node --format=esm --log-level=error --outfile="$scratch/unit.test.mjs"
node --test "$scratch/unit.test.mjs" >"$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
fresh=$scratch/index.html
node build.mjs "$fresh" >/dev/null
if ! cmp "$fresh" "$built"; then
  echo "webui: crates/server/webui/index.html is not what web/ builds: run \`make webui\` and commit the result" >&2
  exit 1
fi
size=$(wc -c <"$fresh")
[ "$size" -le 100000 ] || { echo "webui: $size bytes, more than 100000" >&2; exit 1; }
echo "webui: $size bytes, as built from web/"

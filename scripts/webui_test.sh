#!/usr/bin/env bash
# Tests the web UI of the server: its unit tests under Node, then the web UI in Chromium, against a mock of the server and
# against the real one with a tiny model.
#
#   scripts/webui_test.sh                  all tests
#   scripts/webui_test.sh --screenshots    also writes the pictures docs/webui-*.png
#
# Needs Node 20 with npm, Chromium (CHROMIUM, default /usr/bin/chromium) and the binary (INDRIK, default
# target/debug/indrik). What is missing is printed with the tests that were skipped; under CI=true that is a failure.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
indrik=${INDRIK:-$root/target/debug/indrik}
tiny=${INDRIK_WEBUI_MODEL:-$root/crates/model/tests/fixtures/gguf_q8_0/model.gguf}

say() { echo "webui: $1" >&2; }
fail() { say "$1"; exit 1; }
skip() { # REASON
  [ "${CI:-}" != true ] || fail "$1"
  say "skipped: $1"
}

command -v npm >/dev/null || { skip "no Node 20 with npm, so the web UI was not tested"; exit 0; }
"$root/scripts/check_webui.sh"
cd "$root/web"
[ -x node_modules/.bin/esbuild ] || { skip "the tools of web/package-lock.json are missing, so the web UI was not tested"; exit 0; }

out=$(mktemp -d)
server=
stop() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$out"
}
trap stop EXIT

if [ -z "$(node -e 'import("./tests/browser.mjs").then(({ executablePath }) => console.log(executablePath ?? ""))')" ]; then
  skip "no Chromium, so the web UI was not tested in a browser: install it, or set CHROMIUM"
  exit 0
fi
tests=(tests/chat.test.mjs tests/dashboard.test.mjs tests/accessibility.test.mjs)
if [ -x "$indrik" ]; then
  # The server uses only the settings below.
  for name in ${!INDRIK_@}; do [ "$name" = INDRIK_DEVICE ] || unset "$name"; done
  "$indrik" serve --port 0 --json -m "$tiny" --name tiny --api-key a-key-of-this-test >"$out/server.json" 2>"$out/server.log" &
  server=$!
  until [ -s "$out/server.json" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$out/server.log" >&2; fail "the server did not start"; }
    sleep 0.05
  done
  PAGE_URL=$(sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' "$out/server.json")
  export PAGE_URL PAGE_KEY=a-key-of-this-test
  tests+=(tests/server.test.mjs)
else
  skip "no $indrik, so the web UI was not tested with a real server: build it, or set INDRIK"
fi

say "the web UI in Chromium"
node --test --test-concurrency=1 --test-reporter=spec "${tests[@]}"
if [ "${1:-}" = --screenshots ]; then
  node tests/screenshots.mjs "$root/docs"
  say "wrote docs/webui-*.png"
fi
say "all tests passed in $SECONDS s"

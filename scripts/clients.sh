#!/usr/bin/env bash
# Tests `indrik serve` with OpenAI's, Anthropic's and Ollama's own clients: the Python packages, the npm packages, the examples in
# docs/serving.md, and schemathesis, which generates requests from /openapi.json; scripts/load.py too.
#
#   scripts/clients.sh            all tests, a few minutes
#   FULL=1 scripts/clients.sh     schemathesis for ten minutes instead of seconds
#
# Needs the binary (INDRIK, default target/debug/indrik), Gemma 3 270M as a GGUF file (INDRIK_TEST_GGUF, default the one
# that `make model` pulled), Python 3.11 with venv, and Node 20 with npm; their packages go to target/clients. Tests that
# lack something are skipped with a message; under CI=true that is a failure. Tool calls are tested if INDRIK_TEST_QWEN
# names a GGUF file of Qwen 2.5, which is optional because of its size.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$root/target/clients
indrik=${INDRIK:-$root/target/debug/indrik}
model=${INDRIK_TEST_GGUF:-$(cat "$root/target/test-model" 2>/dev/null || true)}
tiny=$root/crates/model/tests/fixtures/gguf_q8_0/model.gguf
vision=$root/crates/model/tests/fixtures/gemma3_vision_gguf/model.gguf
tools=${INDRIK_TEST_QWEN:-}

say() { echo "clients: $1" >&2; }
fail() { say "$1"; exit 1; }
skip() { # REASON
  [ "${CI:-}" != true ] || fail "$1"
  say "skipped: $1"
}

[ -x "$indrik" ] || fail "$indrik does not exist: build it with \`cargo build\`, or set INDRIK to another binary"
if [ ! -f "$model" ]; then
  skip "no Gemma 3 270M, so no client was tested: \`make model\` pulls it, or set INDRIK_TEST_GGUF"
  exit 0
fi
# The servers use only the settings below.
for name in ${!INDRIK_@}; do [ "$name" = INDRIK_DEVICE ] || unset "$name"; done

python='' node=''
if python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  python=$work/venv/bin/python
else
  skip "no Python 3.11 with venv, so its clients, the documentation examples and schemathesis were not tested"
fi
if command -v npm >/dev/null && node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' 2>/dev/null; then
  node=$work/typescript
else
  skip "no Node 20 with npm, so its clients were not tested"
fi

[ -n "$python$node" ] || exit 0

# --- servers ------------------------------------------------------------------------------------------------------------

mkdir -p "$work"
out=$(mktemp -d)
declare -A servers
stop_all() {
  local name
  for name in "${!servers[@]}"; do kill -KILL "${servers[$name]}" 2>/dev/null || true; done
  rm -rf "$out"
}
trap stop_all EXIT

serve() { # NAME ARGUMENTS
  local name=$1
  shift
  "$indrik" serve --port 0 --json "$@" >"$out/$name.json" 2>"$out/$name.log" &
  servers[$name]=$!
}

url() { # NAME
  until [ -s "$out/$1.json" ]; do
    kill -0 "${servers[$1]}" 2>/dev/null || { cat "$out/$1.log" >&2; fail "server '$1' did not start"; }
    sleep 0.05
  done
  sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' "$out/$1.json"
}

stop() { # NAME
  local status=0
  kill -TERM "${servers[$1]}"
  wait "${servers[$1]}" || status=$?
  unset "servers[$1]"
  [ $status -eq 0 ] || { tail -n 20 "$out/$1.log" >&2; say "server '$1' exited with $status after SIGTERM"; failed+=("$1"); }
}

failed=()
check() { # NAME COMMAND
  local name=$1 started=$SECONDS
  shift
  say "$name"
  if "$@" >&2; then say "$name: passed in $((SECONDS - started)) s"; else failed+=("$name"); fi
}

export CLIENTS_MODEL=gemma-3-270m CLIENTS_STRICT_KEY=a-key-of-this-test
serve real -m "$model" --name "$CLIENTS_MODEL" --context 512 --max-sequences 4
serve strict -m "$tiny" --name "$CLIENTS_MODEL" --context 512 --max-sequences 1 --max-queue 0 --api-key "$CLIENTS_STRICT_KEY"
serve tiny -m "$tiny" --name tiny --context 64
serve vision -m "$vision" --name vision
# All models of a store, of which there is one.
mkdir "$out/models"
ln -s "$(realpath "$model")" "$out/models/gemma3@270m.gguf"
INDRIK_MODELS_DIR=$out/models serve store --context 512 --max-sequences 1
if [ -f "$tools" ]; then
  export CLIENTS_TOOLS_MODEL=qwen
  serve tools -m "$tools" --name "$CLIENTS_TOOLS_MODEL" --context 1024 --max-sequences 1 --request-timeout 15min
else
  say "skipped: no Qwen 2.5, so tool calls were not tested; set INDRIK_TEST_QWEN to a GGUF file of it"
fi

# --- packages -----------------------------------------------------------------------------------------------------------

# The requirements are copied last, so that an interrupted installation is repeated.
if [ -n "$python" ] && ! cmp -s "$root/clients/python/requirements.txt" "$work/venv/complete"; then
  say "installing Python packages (once)"
  rm -rf "$work/venv"
  python3 -m venv "$work/venv"
  "$python" -m pip install --quiet --disable-pip-version-check -r "$root/clients/python/requirements.txt" >&2 ||
    fail "pip could not install clients/python/requirements.txt"
  cp "$root/clients/python/requirements.txt" "$work/venv/complete"
fi
if [ -n "$node" ]; then
  mkdir -p "$node"
  rm -f "$node"/*.mjs
  # Modules resolve packages relative to their own folder.
  cp "$root"/clients/typescript/{.npmrc,*} "$node"
  if ! cmp -s "$node/package-lock.json" "$node/complete"; then
    say "installing Node packages (once)"
    (cd "$node" && npm ci --ignore-scripts --loglevel=error >&2) ||
      fail "npm could not install clients/typescript/package-lock.json"
    cp "$node/package-lock.json" "$node/complete"
  fi
fi

# --- tests --------------------------------------------------------------------------------------------------------------

CLIENTS_URL=$(url real)
CLIENTS_STRICT_URL=$(url strict)
CLIENTS_VISION_URL=$(url vision)
CLIENTS_STORE_URL=$(url store)
tiny_url=$(url tiny)
if [ -n "${servers[tools]:-}" ]; then
  CLIENTS_TOOLS_URL=$(url tools)
  export CLIENTS_TOOLS_URL
fi
export CLIENTS_URL CLIENTS_STRICT_URL CLIENTS_VISION_URL CLIENTS_STORE_URL CLIENTS_NODE=$node
# No bytecode in the source tree.
export PYTHONDONTWRITEBYTECODE=1

if [ -n "$python" ]; then
  check "openai, anthropic and ollama for Python, and the examples in docs/serving.md" \
    "$python" -m pytest -q -p no:cacheprovider --tb=short --durations=5 "$root/clients/python"
fi
if [ -n "$node" ]; then
  # One file at a time: some tests count the server's pages.
  check "openai, anthropic and ollama for Node" node --test --test-concurrency=1 --test-reporter=spec "$node"/*.test.mjs
fi
if [ -n "$python" ]; then
  # More requests than sequences.
  check "scripts/load.py" python3 "$root/scripts/load.py" --url "$tiny_url" --requests 12 --prompt 20 --tokens 8 --bursts 2 \
    --min-token-id 10 --max-token-id 90 --json
fi
if [ -n "$python" ]; then
  if [ -n "${FULL:-}" ]; then bounds=(--max-examples 20000 --max-time 600); else bounds=(--max-examples 25 --seed 1); fi
  # positive_data_acceptance is excluded: a schema cannot express every reason for a refusal, such as a prompt that is too
  # long. One worker: hypothesis generates requests on one thread only.
  check schemathesis env -C "$work" venv/bin/schemathesis --no-color run "$tiny_url/openapi.json" \
    --checks all --exclude-checks positive_data_acceptance --phases examples,coverage,fuzzing \
    --workers 1 --request-timeout 60 --generation-database none "${bounds[@]}"
fi

for name in "${!servers[@]}"; do stop "$name"; done
[ ${#failed[@]} -eq 0 ] || fail "failed: $(printf '%s; ' "${failed[@]}")"
say "all tests passed in $SECONDS s"

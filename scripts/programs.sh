#!/usr/bin/env bash
# Tests `indrik serve` with programs that people use with such a server: agent frameworks, a proxy, a chat server. Each has a
# conversation with a tool. The model is tiny and made for this (clients/programs/make_model.py).
#
#   scripts/programs.sh [BINARY] [PROGRAM…]    default: target/debug/indrik, all programs; about 7 minutes
#
# Needs Python 3.11 with venv and Node 20 with npm; packages go to target/programs (2.5 GB, once). A program whose packages do
# not install is skipped with a message; under CI=true that is a failure.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source=$root/clients/programs
work=$root/target/programs
indrik=${1:-${INDRIK:-$root/target/debug/indrik}}
shift || true
programs=("$@")
[ $# -gt 0 ] || programs=(coding_agent langchain llama_index litellm pydantic_ai ai_sdk open_webui)

say() { echo "programs: $1" >&2; }
fail() { say "$1"; exit 1; }
skip() { # REASON
  [ "${CI:-}" != true ] || fail "$1"
  say "skipped: $1"
}

[ -x "$indrik" ] || fail "$indrik does not exist: build it with \`cargo build\`, or name another binary"
if ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  skip "no Python 3.11 with venv, so no program was tested"
  exit 0
fi
# The server uses only the settings below.
for name in ${!INDRIK_@}; do [ "$name" = INDRIK_DEVICE ] || unset "$name"; done

mkdir -p "$work"
out=$(mktemp -d)
server=''
stop() {
  [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
  rm -rf "$out"
}
trap stop EXIT

# --- packages -----------------------------------------------------------------------------------------------------------

# The list of packages is copied last, so that an interrupted installation is repeated.
install_python() { # PROGRAM
  local list=$source/requirements/$1.txt
  ! cmp -s "$list" "$work/$1/complete" || return 0
  say "installing the packages of $1 (once)"
  rm -rf "${work:?}/$1"
  python3 -m venv "$work/$1" &&
    "$work/$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r "$list" \
      >"$out/$1.log" 2>&1 &&
    cp "$list" "$work/$1/complete"
}

install_node() { # PROGRAM
  local folder=$work/$1
  command -v npm >/dev/null && node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' || return 1
  mkdir -p "$folder"
  # Modules resolve packages relative to their own folder.
  cp "$source/$1"/{.npmrc,*} "$folder"
  ! cmp -s "$folder/package-lock.json" "$folder/complete" || return 0
  say "installing the packages of $1 (once)"
  (cd "$folder" && npm ci --ignore-scripts --loglevel=error) >"$out/$1.log" 2>&1 &&
    cp "$folder/package-lock.json" "$folder/complete"
}

install() { # PROGRAM
  if [ -d "$source/$1" ]; then install_node "$1"; else install_python "$1"; fi
}

# --- server -------------------------------------------------------------------------------------------------------------

export PROGRAMS_MODEL=tool-caller PROGRAMS_KEY=a-key-of-this-test
# No bytecode in the source tree.
export PYTHONPYCACHEPREFIX=$work/pycache
# The programs connect to this machine only.
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 DO_NOT_TRACK=1 ANONYMIZED_TELEMETRY=False LANGSMITH_TRACING=false \
  LITELLM_LOCAL_MODEL_COST_MAP=True HF_HUB_OFFLINE=1

# The coding agent's packages include those that write the model.
if ! install coding_agent; then
  tail -n 3 "$out/coding_agent.log" >&2
  skip "clients/programs/requirements/coding_agent.txt does not install here, so no program was tested"
  exit 0
fi
"$work/coding_agent/bin/python" "$source/make_model.py" "$out/model.gguf"
"$indrik" serve --port 0 --json -m "$out/model.gguf" --name "$PROGRAMS_MODEL" --context 32768 --max-sequences 4 \
  --api-key "$PROGRAMS_KEY" >"$out/server.json" 2>"$out/server.log" &
server=$!
until [ -s "$out/server.json" ]; do
  kill -0 "$server" 2>/dev/null || { cat "$out/server.log" >&2; fail "the server did not start"; }
  sleep 0.05
done
PROGRAMS_URL=$(sed -n 's/.*"url": *"\([^"]*\)".*/\1/p' "$out/server.json")
export PROGRAMS_URL

# --- programs -----------------------------------------------------------------------------------------------------------

failed=()
for program in "${programs[@]}"; do
  if ! install "$program"; then
    tail -n 3 "$out/$program.log" >&2 2>/dev/null || true
    skip "$program: package does not install here"
    continue
  fi
  case $program in
    ai_sdk) command=(node "$work/$program/program.mjs") ;;
    coding_agent) command=("$work/$program/bin/python" "$source/coding_agent.py") ;;
    *) command=("$work/$program/bin/python" "$source/${program}_program.py") ;;
  esac
  started=$SECONDS
  # A folder of its own: some programs write files to the current one.
  mkdir "$out/$program"
  if (cd "$out/$program" && timeout 900 "${command[@]}") >"$out/$program.log" 2>&1; then
    say "$program: passed in $((SECONDS - started)) s"
  else
    tail -n 40 "$out/$program.log" >&2
    say "$program: failed"
    failed+=("$program")
  fi
done

status=0
kill -TERM "$server"
wait "$server" || status=$?
server=''
[ $status -eq 0 ] || { tail -n 20 "$out/server.log" >&2; failed+=("the server exited with $status after SIGTERM"); }
[ ${#failed[@]} -eq 0 ] || fail "failed: $(printf '%s; ' "${failed[@]}")"
say "all programs passed in $SECONDS s"

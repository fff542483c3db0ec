#!/usr/bin/env bash
# Compares Indrik with llama.cpp's prebuilt Vulkan library on this machine: same GGUF file, device and tokens, alternating.
#
#   scripts/versus_llama_cpp.sh MODEL.gguf [-p 512] [-n 64] [-d 0] [-r 5] [--device N] [--json]
#
# Needs Node 20 or later with npm, and the network once: node-llama-cpp is installed to target/versus, prebuilt.
# INDRIK is the binary (default target/release/indrik).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sources=$root/scripts/versus
work=${VERSUS_DIR:-$root/target/versus}
indrik=${INDRIK:-$root/target/release/indrik}

fail() { echo "versus: $1" >&2; exit "${2:-1}"; }
usage() { fail "usage: scripts/versus_llama_cpp.sh MODEL.gguf [-p 512] [-n 64] [-d 0] [-r 5] [--device N] [--json]" 2; }

model='' prompt=512 tokens=64 depth=0 repeats=5 json=''
while [ $# -gt 0 ]; do
  case $1 in
    -p | -n | -d | -r)
      [[ ${2:-} =~ ^[0-9]{1,6}$ ]] || usage
      case $1 in -p) prompt=$2 ;; -n) tokens=$2 ;; -d) depth=$2 ;; -r) repeats=$2 ;; esac
      shift 2 ;;
    --device) [ $# -ge 2 ] || usage; export INDRIK_DEVICE=$2; shift 2 ;;
    --json) json=--json; shift ;;
    -*) usage ;;
    *) [ -z "$model" ] || usage; model=$1; shift ;;
  esac
done
[ -n "$model" ] || usage
[ "$repeats" -ge 1 ] || fail "-r 0 measures nothing: at least one run" 2
[ "$prompt" -ge 1 ] || [ "$tokens" -ge 1 ] || fail "-p 0 -n 0 measures nothing" 2

[ -f "$model" ] || fail "$model does not exist: llama.cpp reads GGUF files; \`indrik pull gemma3:270m --json\` downloads one and prints its path"
for tool in node npm; do
  command -v $tool >/dev/null || fail "$tool is not installed: install Node 20 or later with npm (https://nodejs.org, or your distribution's package)"
done
node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' ||
  fail "Node $(node --version) is too old for node-llama-cpp: 20 or later"
[ -x "$indrik" ] || fail "$indrik does not exist: build it with \`cargo build --release\`, or set INDRIK to another binary"

say() { echo "versus: $1" >&2; }

mkdir -p "$work"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$indrik" --version >"$out/version"
"$indrik" devices --json >"$out/devices.json"
"$indrik" inspect "$model" --json >"$out/inspect.json"
vocab=$(node "$sources/report.mjs" vocab "$out/inspect.json")
# The Vulkan device index, which llama.cpp uses too. Setting it makes llama.cpp accept CPU drivers as well.
GGML_VK_VISIBLE_DEVICES=$(node "$sources/report.mjs" device "$out/devices.json")
export GGML_VK_VISIBLE_DEVICES

# An existing installation is reused if its version matches.
if ! cmp -s "$sources/package.json" "$work/complete"; then
  say "downloading llama.cpp's prebuilt Vulkan library (about 130 MB, once)"
  rm -rf "$work/node_modules" "$work/complete"
  cp "$sources/package.json" "$work/package.json"
  # Post-install scripts would compile a missing library, and the optional packages are for other systems and GPUs.
  (cd "$work" && npm install --ignore-scripts --omit=optional --no-audit --no-fund --no-package-lock --loglevel=error >&2) ||
    fail "npm could not install node-llama-cpp: it needs the network, and Linux on x86-64 for the Vulkan library"
  # Copied last, so that an interrupted installation is repeated.
  cp "$sources/package.json" "$work/complete"
fi
cp "$sources/peer.mjs" "$work/peer.mjs"

node "$work/peer.mjs" probe >"$out/probe.json"
peer=yes
node "$sources/report.mjs" check "$out/devices.json" "$out/probe.json" || {
  status=$?
  [ $status -eq 3 ] || exit $status
  say "only Indrik is measured"
  peer=''
}

for run in $(seq "$repeats"); do
  number=$(printf '%03d' "$run")
  say "run $run of $repeats: Indrik"
  "$indrik" bench -m "$model" -p "$prompt" -n "$tokens" -d "$depth" -r 1 --device "$GGML_VK_VISIBLE_DEVICES" --json >"$out/ours-$number.json"
  [ -n "$peer" ] || continue
  say "run $run of $repeats: llama.cpp"
  node "$work/peer.mjs" run "$model" "$vocab" "$prompt" "$tokens" "$depth" >"$out/theirs-$number.json"
done
node "$sources/report.mjs" table "$out" "$model" ${json:+"$json"}

#!/usr/bin/env bash
# Measures Indrik against llama.cpp's prebuilt Vulkan library on this machine: the same GGUF file, device and tokens, in turn.
#
#   scripts/versus_llama_cpp.sh MODEL.gguf [-p 512] [-n 64] [-d 0] [-r 5] [--device N] [--json]
#
# Needs Node 20 or later with npm, and the network once: node-llama-cpp goes to target/versus. Nothing of it is compiled.
# INDRIK names the binary (target/release/indrik).
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

[ -f "$model" ] || fail "there is no file $model: llama.cpp reads GGUF files; \`indrik pull gemma3:270m --json\` fetches one and says where it lies"
for tool in node npm; do
  command -v $tool >/dev/null || fail "$tool is not installed: install Node 20 or later with npm (https://nodejs.org, or your distribution's package)"
done
node -e 'process.exit(Number(process.versions.node.split(".")[0]) >= 20 ? 0 : 1)' ||
  fail "Node $(node --version) is too old for node-llama-cpp: 20 or later"
[ -x "$indrik" ] || fail "there is no $indrik: build it with \`cargo build --release\`, or name another with INDRIK"

say() { echo "versus: $1" >&2; }

mkdir -p "$work"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$indrik" --version >"$out/version"
"$indrik" devices --json >"$out/devices.json"
"$indrik" inspect "$model" --json >"$out/inspect.json"
vocab=$(node "$sources/report.mjs" vocab "$out/inspect.json")
# Vulkan's own index, by which llama.cpp counts too. Where it is set, llama.cpp takes CPU drivers as well.
GGML_VK_VISIBLE_DEVICES=$(node "$sources/report.mjs" device "$out/devices.json")
export GGML_VK_VISIBLE_DEVICES

# What is there already is taken if it is the version asked for.
if ! cmp -s "$sources/package.json" "$work/complete"; then
  say "fetching llama.cpp's prebuilt Vulkan library (about 130 MB, once)"
  rm -rf "$work/node_modules" "$work/complete"
  cp "$sources/package.json" "$work/package.json"
  # Scripts after the installation would compile where a library is missing, and the optional packages are those of other
  # systems and GPUs.
  (cd "$work" && npm install --ignore-scripts --omit=optional --no-audit --no-fund --no-package-lock --loglevel=error >&2) ||
    fail "npm could not fetch node-llama-cpp: it needs the network, and Linux on x86-64 for the Vulkan library"
  # Last, so that an installation that was broken off is made again.
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

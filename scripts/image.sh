#!/usr/bin/env bash
# Builds the container image `indrik:VERSION` from packaging/Containerfile, with the binary of `make dist` in place of the
# build stage. Needs podman, buildah, or docker with BuildKit.
#
#   scripts/image.sh
#
#   IMAGE_TOOL=podman   which of them to use; default: the first that is installed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() { printf 'image: error: %s\n' "$*" >&2; exit 1; }

case "${1:-}" in
  "") ;;
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "image: unknown option '$1' (see scripts/image.sh --help)" >&2; exit 2 ;;
esac

tool=${IMAGE_TOOL:-}
for candidate in podman buildah docker; do
  if [ -z "$tool" ] && command -v "$candidate" >/dev/null; then tool=$candidate; fi
done
[ -n "$tool" ] || die "no podman, buildah or docker found: install one of them"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
archive=$(realpath -m "${CARGO_TARGET_DIR:-target}")/packages/indrik-$version-x86_64-linux.tar.gz
[ -f "$archive" ] || die "$archive does not exist: run \`make dist\` first"

# The build context `build` replaces the stage of that name.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir "$context/out"
tar --extract --file="$archive" --directory="$context/out" --strip-components=2 "indrik-$version-x86_64-linux/bin/indrik"

# The OCI format, podman's default, has no HEALTHCHECK.
format=(--format docker)
if [ "$tool" = docker ]; then format=(); fi
"$tool" build "${format[@]}" --build-context "build=$context" --tag "indrik:$version" --file packaging/Containerfile .

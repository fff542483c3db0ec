#!/usr/bin/env bash
# Builds what a release consists of, in target/packages:
#
#   indrik-VERSION-x86_64-linux.tar.gz   binary, unit, completions, manual pages, licences; unpacks into a prefix
#   indrik_VERSION-1_amd64.deb           the same as a Debian package, with the service
#   SHA256SUMS
#
#   scripts/dist.sh            build the binary, then the packages
#   scripts/dist.sh build      only the binary
#   scripts/dist.sh package    only the packages, from the binary that `build` left
#
# The binary is linked by Zig against glibc 2.31, so it runs with glibc 2.31 (2020) or later, whatever this machine's version.
# Zig and cargo-zigbuild come from the Python package index, pinned with hashes, into target/dist-tools.
#
# Times in the packages are those of the last commit (SOURCE_DATE_EPOCH overrides), so packaging one binary twice gives
# the same bytes.
#
#   DIST_MAINTAINER="NAME <ADDRESS>"   maintainer of the Debian package
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'dist: %s\n' "$*"; }
die() { printf 'dist: error: %s\n' "$*" >&2; exit 1; }

case "${1:-all}" in
  all | build | package) step=${1:-all} ;;
  -h | --help) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "dist: unknown step '$1' (see scripts/dist.sh --help)" >&2; exit 2 ;;
esac

# The packages run the binary to write manual pages and completions.
[ "$(uname -m)" = x86_64 ] || die "packages are for x86-64 and are built there; this machine is $(uname -m)"

# The oldest C library the binary must run with: Debian 11, Ubuntu 20.04, RHEL 9.
glibc=2.31
rust_target=x86_64-unknown-linux-gnu
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")
binary=$target_dir/$rust_target/dist/indrik
tools=$target_dir/dist-tools
out=$target_dir/packages
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
maintainer=${DIST_MAINTAINER:-The Indrik authors <maintainers@indrik.invalid>}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} || die "not a git checkout: set SOURCE_DATE_EPOCH"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

needs() { # COMMAND PACKAGE
  command -v "$1" >/dev/null || die "$1 not found: install it (Debian and Fedora: $2)"
}

# --- binary ------------------------------------------------------------------------------------------------------------

install_tools() {
  needs python3 python3
  if ! cmp -s packaging/dist-requirements.txt "$tools/requirements.txt"; then
    say "installing Zig and cargo-zigbuild to $tools"
    rm -rf "$tools"
    python3 -m venv "$tools" || die "python3 has no venv: install it (Debian: python3-venv)"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes -r packaging/dist-requirements.txt
    cp packaging/dist-requirements.txt "$tools/requirements.txt"
  fi
}

build() {
  install_tools
  local cargo_home=${CARGO_HOME:-$HOME/.cargo}
  # No paths of this machine in panic messages.
  local remap="--remap-path-prefix=$cargo_home/registry/src=registry"
  remap+=" --remap-path-prefix=$target_dir=target --remap-path-prefix=$PWD=."
  say "building indrik $version for glibc $glibc"
  RUSTFLAGS="$remap" PATH="$tools/bin:$PATH" CARGO_TARGET_DIR="$target_dir" \
    cargo zigbuild --profile dist --locked --package indrik-cli --target "$rust_target.$glibc"
}

# The promise of docs/install.md: nothing but the C library, at most as new as $glibc. The Vulkan loader is opened at run
# time.
check_binary() {
  needs objdump binutils
  [ -x "$binary" ] || die "no binary $binary: run \`scripts/dist.sh build\` first"
  local needed unexpected newest
  needed=$(objdump -p "$binary" | awk '$1 == "NEEDED" { print $2 }')
  unexpected=$(grep -vE '^(libc|libm|libpthread|libdl|librt|ld-linux-x86-64)\.so\.[0-9]+$' <<<"$needed" || true)
  [ -z "$unexpected" ] || die "the binary needs libraries other than libc: ${unexpected//$'\n'/ }"
  newest=$(objdump -T "$binary" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
  if [ "$(printf '%s\n' "$newest" "$glibc" | sort -V | tail -n 1)" != "$glibc" ]; then
    die "the binary needs glibc $newest, newer than $glibc"
  fi
  [ "$("$binary" --version)" = "indrik $version" ] || die "$binary is $("$binary" --version), not $version: build it again"
  say "binary: $(stat -c %s "$binary") bytes, needs glibc $newest and ${needed//$'\n'/ }"
}

# --- packages ----------------------------------------------------------------------------------------------------------

put() { # MODE FILE DESTINATION
  install -D -m "$1" "$2" "$3"
}

# What is generated once and goes into both packages.
generate() { # FOLDER
  "$binary" man --out "$1/man"
  local shell
  for shell in bash zsh fish; do "$binary" completions "$shell" >"$1/indrik.$shell"; done
  say "collecting licences of dependencies"
  scripts/third_party_licenses.py --zig "$(echo "$tools"/lib/python3*/site-packages/ziglang/LICENSE)" >"$1/THIRD-PARTY-LICENSES"
}

# The tree below a prefix, as in /usr/local and /usr.
stage() { # GENERATED PREFIX ZSH-FOLDER
  put 755 "$binary" "$2/bin/indrik"
  local page
  for page in "$1"/man/*.1; do put 644 "$page" "$2/share/man/man1/${page##*/}"; done
  put 644 "$1/indrik.bash" "$2/share/bash-completion/completions/indrik"
  put 644 "$1/indrik.zsh" "$2/share/zsh/$3/_indrik"
  put 644 "$1/indrik.fish" "$2/share/fish/vendor_completions.d/indrik.fish"
  put 644 packaging/indrik.service "$2/lib/systemd/system/indrik.service"
  put 644 packaging/sysusers.conf "$2/lib/sysusers.d/indrik.conf"
  put 644 packaging/tmpfiles.conf "$2/lib/tmpfiles.d/indrik.conf"
  put 644 README.md "$2/share/doc/indrik/README.md"
  put 644 docs/install.md "$2/share/doc/indrik/docs/install.md"
  put 644 docs/serving.md "$2/share/doc/indrik/docs/serving.md"
  put 644 "$1/THIRD-PARTY-LICENSES" "$2/share/doc/indrik/THIRD-PARTY-LICENSES"
}

# File times of a tree, so that they do not depend on when it was staged.
set_times() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

tarball() { # GENERATED WORK
  local name=indrik-$version-x86_64-linux
  local root=$2/$name
  stage "$1" "$root" site-functions
  sed -i 's|^ExecStart=/usr/bin/|ExecStart=/usr/local/bin/|' "$root/lib/systemd/system/indrik.service"
  grep -q '^ExecStart=/usr/local/bin/indrik ' "$root/lib/systemd/system/indrik.service" || die "packaging/indrik.service has no ExecStart=/usr/bin/indrik"
  put 644 packaging/serve.toml "$root/share/doc/indrik/serve.toml"
  put 644 CHANGELOG.md "$root/share/doc/indrik/CHANGELOG.md"
  put 644 LICENSE-MIT "$root/share/doc/indrik/LICENSE-MIT"
  put 644 LICENSE-APACHE "$root/share/doc/indrik/LICENSE-APACHE"
  set_times "$root"
  tar --create --directory="$2" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$SOURCE_DATE_EPOCH" "$name" | gzip --best --no-name >"$out/$name.tar.gz"
  say "wrote $out/$name.tar.gz"
}

deb() { # GENERATED WORK
  needs dpkg-deb dpkg
  local root=$2/deb doc control file
  doc=$root/usr/share/doc/indrik
  control=$root/DEBIAN
  stage "$1" "$root/usr" vendor-completions
  put 644 packaging/serve.toml "$root/etc/indrik/serve.toml"
  put 644 packaging/deb/copyright "$doc/copyright"
  put 644 CHANGELOG.md "$doc/changelog"
  printf 'indrik (%s-1) unstable; urgency=medium\n\n  * Release %s; see changelog.gz.\n\n -- %s  %s\n' \
    "$version" "$version" "$maintainer" "$(date --date="@$SOURCE_DATE_EPOCH" --rfc-email)" >"$doc/changelog.Debian"
  gzip --best --no-name "$doc"/changelog* "$doc/THIRD-PARTY-LICENSES" "$root"/usr/share/man/man1/*.1

  put 644 packaging/deb/lintian-overrides "$root/usr/share/lintian/overrides/indrik"
  for file in postinst prerm postrm; do put 755 "packaging/deb/$file" "$control/$file"; done
  (cd "$root" && find etc -type f | sort | sed 's|^|/|') >"$control/conffiles"
  (cd "$root" && find usr -type f | sort | xargs -d '\n' md5sum) >"$control/md5sums"
  # KiB, counted from file sizes: `du` depends on the file system.
  local size
  size=$(find "$root/usr" "$root/etc" -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
  sed -e "s|@VERSION@|$version-1|" -e 's|@ARCHITECTURE@|amd64|' -e "s|@MAINTAINER@|$maintainer|" \
    -e "s|@INSTALLED_SIZE@|$size|" -e "s|@GLIBC@|$glibc|" packaging/deb/control.in >"$control/control"
  set_times "$root"
  # xz: dpkg of Debian 11 does not read zstd. One thread: the result must not depend on the number of cores.
  DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz --build "$root" "$out/indrik_$version-1_amd64.deb" >/dev/null
  say "wrote $out/indrik_$version-1_amd64.deb"
}

package() {
  check_binary
  needs python3 python3
  needs gzip gzip
  [ -f "$tools/requirements.txt" ] || install_tools
  work=$(mktemp -d) # global: the trap runs when this function has returned
  trap 'rm -rf "$work"' EXIT
  rm -rf "$out"
  mkdir -p "$out" "$work/generated"
  generate "$work/generated"
  tarball "$work/generated" "$work"
  deb "$work/generated" "$work"
  (cd "$out" && sha256sum -- *.tar.gz *.deb >SHA256SUMS)
  say "wrote $out/SHA256SUMS"
}

[ "$step" = package ] || build
[ "$step" = build ] || package

#!/usr/bin/env bash
# Tries the packages of `make dist` on a machine without Rust: boots Debian 12 in a folder with systemd-nspawn, runs the
# commands of docs/install.md there, asks the server a question, uninstalls and checks that nothing is left. Needs root,
# debootstrap, systemd-nspawn, the network, and port 8006.
#
#   scripts/dist_test.sh            the Debian package, then the tarball
#   scripts/dist_test.sh deb        only the Debian package
#   scripts/dist_test.sh tarball    only the tarball
#
#   DEBIAN_MIRROR=URL               default: http://deb.debian.org/debian
#   SSL_CERT_FILE=FILE              certificates of a proxy, passed on to `indrik pull`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'dist_test: %s\n' "$*"; }
die() { printf 'dist_test: error: %s\n' "$*" >&2; exit 1; }

case "${1:-all}" in
  all) packages=(deb tarball) ;;
  deb | tarball) packages=("$1") ;;
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "dist_test: unknown package '$1' (see scripts/dist_test.sh --help)" >&2; exit 2 ;;
esac
[ "$(id -u)" -eq 0 ] || die "booting a system in a folder needs root: sudo scripts/dist_test.sh"
for tool in debootstrap systemd-nspawn nsenter; do
  command -v "$tool" >/dev/null || die "$tool not found: install it (Debian: debootstrap, systemd-container)"
done

target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")
dist=$target_dir/packages
[ -f "$dist/SHA256SUMS" ] || die "$dist has no packages: run \`make dist\` first"
work=$target_dir/dist-test
base=$work/bookworm
root=$work/run
console=$work/console.log

# --- the machine -------------------------------------------------------------------------------------------------------

bootstrap() {
  [ -f "$base/.complete" ] && return
  say "bootstrapping Debian 12 to $base"
  rm -rf "$base"
  mkdir -p "$work"
  # sudo and curl for the commands of docs/install.md, man-db because systemd verifies the unit's manual page.
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,sudo,curl,man-db bookworm "$base" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$work/debootstrap.log" || die "debootstrap failed: see $work/debootstrap.log"
  touch "$base/.complete"
}

leader=
halt() {
  if [ -n "$leader" ]; then
    # Killing init ends every process of the container.
    kill -KILL "$leader" 2>/dev/null || true
    wait || true
    leader=
  fi
}
trap halt EXIT

descendants() { # PROCESS
  local child
  while read -r child; do
    echo "$child"
    descendants "$child"
  done < <(ps --no-headers -o pid --ppid "$1" | tr -d ' ')
}

# Runs a command in the machine.
inside() {
  nsenter --target "$leader" --all env -i HOME=/root PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
}

boot() {
  rm -rf "$root"
  cp -a "$base" "$root"
  cp "$dist"/* "$root/root/"
  echo indrik-test >"$root/etc/hostname"
  echo '127.0.0.1 localhost indrik-test' >"$root/etc/hosts"
  cat /etc/resolv.conf >"$root/etc/resolv.conf"
  # `apt install` in the page asks; here nobody answers.
  echo 'APT::Get::Assume-Yes "true";' >"$root/etc/apt/apt.conf.d/90yes"
  if [ -n "${SSL_CERT_FILE:-}" ]; then
    cp "$SSL_CERT_FILE" "$root/etc/ssl/proxy.crt"
    printf 'Defaults env_file=/etc/ssl/proxy.env\n' >"$root/etc/sudoers.d/proxy"
    printf 'SSL_CERT_FILE=/etc/ssl/proxy.crt\n' >"$root/etc/ssl/proxy.env"
  fi
  systemd-nspawn --quiet --directory="$root" --machine=indrik-test --boot --register=no --keep-unit --resolv-conf=off \
    --console=pipe </dev/null >"$console" 2>&1 &
  local nspawn=$! child state tries=0
  until [ "${state:-}" = running ]; do
    sleep 1
    kill -0 "$nspawn" 2>/dev/null || die "the machine did not boot: see $console"
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || die "the machine is '${state:-not there}' after two minutes: see $console"
    # The descendant of nspawn that is init of a process namespace.
    while read -r child; do
      if [ "$(awk '/^NSpid:/ && NF > 2 { print $NF }' "/proc/$child/status" 2>/dev/null)" = 1 ]; then leader=$child; fi
    done < <(descendants "$nspawn")
    if [ -n "$leader" ]; then state=$(inside systemctl is-system-running 2>/dev/null) || true; fi
  done
  say "booted $(sed -n 's/^PRETTY_NAME="\(.*\)"$/\1/p' "$root/etc/os-release"), $(inside systemctl --version | head -n 1)"
  inside apt-get update -qq
}

# --- the page ----------------------------------------------------------------------------------------------------------

# The Nth block of commands under a heading of docs/install.md.
block() { # HEADING N
  awk -v heading="## $1" -v wanted="$2" '
    /^## / { inside = ($0 == heading); next }
    inside && /^```/ { fenced = !fenced; if (fenced) count++; next }
    fenced && count == wanted { print }
  ' docs/install.md
}

# Runs a block line by line, in root's home folder.
follow() { # HEADING N
  local commands
  commands=$(block "$1" "$2")
  [ -n "$commands" ] || die "docs/install.md has no block $2 under '$1'"
  printf '%s\n' "$commands" >"$root/root/block.sh"
  inside bash -euxc 'cd /root; source ./block.sh' >>"$work/commands.log" 2>&1 || die "a command under '$1' failed: see $work/commands.log"
}

ask() {
  local answer
  answer=$(inside curl --silent --fail http://127.0.0.1:8006/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model": "smollm2", "temperature": 0, "messages": [{"role": "user", "content": "What is the capital of France?"}]}')
  grep -q Paris <<<"$answer" || die "unexpected answer: $answer"
}

check_service() {
  inside systemctl --quiet is-active indrik || die "the service is not running"
  inside systemctl --quiet is-enabled indrik || die "the service is not enabled"
  local unit status exposure
  unit=$(inside systemctl show --property=FragmentPath --value indrik)
  inside systemd-analyze verify "$unit" || die "systemd-analyze rejects $unit"
  exposure=$(inside systemd-analyze security --no-pager indrik | tail -n 1) || die "systemd-analyze does not rate the service"
  say "$exposure"
  status=$(inside cat "/proc/$(inside systemctl show --property=MainPID --value indrik)/status")
  grep -qE '^CapEff:[[:space:]]+0+$' <<<"$status" || die "the service has capabilities"
  grep -qE '^Seccomp:[[:space:]]+2$' <<<"$status" || die "the service has no system call filter"
  grep -qE '^NoNewPrivs:[[:space:]]+1$' <<<"$status" || die "the service may gain privileges"
}

# Nothing of the package is left, apart from the files that were copied to root's home folder and manual pages in man's
# own cache.
check_clean() {
  local left
  left=$(inside find / -xdev -name '*indrik*' -not -path '/proc/*' -not -path '/root/*' -not -path '/var/cache/man/*')
  [ -z "$left" ] || die "left behind: $left"
  if inside getent passwd indrik || inside getent group indrik; then die "the user or group is left behind"; fi
}

seconds() { awk "BEGIN { printf \"%.1f\", $(date +%s.%N) - $1 }"; }

try_deb() {
  local started
  started=$(date +%s.%N)
  follow "Debian package" 1
  ask
  say "Debian package: $(seconds "$started") s from the file to the first answer, with Mesa and the model downloaded"
  check_service
  inside systemctl stop indrik
  [ "$(inside systemctl show --property=Result --value indrik)" = success ] || die "the service did not drain"
  inside sudo apt-get install --reinstall -qq "/root/$(basename "$dist"/*.deb)" >>"$work/commands.log" 2>&1
  inside systemctl --quiet is-active indrik || die "an upgrade did not start the service"
  inside sudo apt-get purge -qq indrik >>"$work/commands.log" 2>&1
  check_clean
  say "Debian package: installed, served, upgraded, purged"
}

try_tarball() {
  inside apt-get install -qq --no-install-recommends libvulkan1 mesa-vulkan-drivers >>"$work/commands.log" 2>&1
  local started
  started=$(date +%s.%N)
  follow Tarball 2
  follow Tarball 3
  ask
  say "tarball: $(seconds "$started") s from the file to the first answer, with the model downloaded"
  check_service
  follow Tarball 4
  check_clean
  say "tarball: installed, served, uninstalled"
}

bootstrap
: >"$work/commands.log"
for package in "${packages[@]}"; do
  boot
  "try_$package"
  halt
done
rm -rf "$root"

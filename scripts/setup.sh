#!/usr/bin/env bash
# Installs Indrik's dependencies other than Rust: the Vulkan loader, Mesa's Vulkan drivers, the Khronos validation layer
# and a C++ compiler. Installs only what is missing, so a second run takes a fraction of a second.
#
#   scripts/setup.sh            install missing dependencies
#   scripts/setup.sh --check    only list missing dependencies; exit 1 if there are any
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

check_only=false
case "${1:-}" in
  "") ;;
  --check) check_only=true ;;
  -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "setup: unknown option '$1' (see scripts/setup.sh --help)" >&2; exit 2 ;;
esac

# --- detection -----------------------------------------------------------------------------------------------------------

vulkan_dirs=(/usr/share/vulkan /usr/local/share/vulkan /etc/vulkan)
has_loader() {
  { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null; } | grep 'libvulkan\.so\.1' >/dev/null
}
has_manifest() { # FOLDER NAME-PATTERN; drivers for 32-bit programs do not count
  local dir
  for dir in "${vulkan_dirs[@]}"; do compgen -G "$dir/$1/$2" | grep -vE 'i[36]86' >/dev/null && return 0; done
  return 1
}
has_cpu_driver() { has_manifest icd.d 'lvp_icd*.json'; }
has_amd_driver() { has_manifest icd.d 'radeon_icd*.json'; }
has_validation() { has_manifest explicit_layer.d 'VkLayer_khronos_validation.json'; }
has_cxx() { command -v c++ >/dev/null || command -v g++ >/dev/null; }

# RADV supports cooperative matrices from Mesa 24 on. Debian 12 ships 22.3, its backports 25.0.
on_bookworm() { (. /etc/os-release 2>/dev/null && [ "${VERSION_CODENAME:-}" = bookworm ]); }
mesa_is_old() {
  on_bookworm || return 1
  local version
  version=$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null) || return 0
  dpkg --compare-versions "$version" lt 24
}

missing=()
has_loader || missing+=(loader)
if ! has_cpu_driver || ! has_amd_driver || mesa_is_old; then missing+=(mesa); fi
has_validation || missing+=(validation)
has_cxx || missing+=(cxx)

command -v cargo >/dev/null || die "cargo not found: install Rust from your distribution or https://rustup.rs, then run this again"
# rust-toolchain.toml pins the toolchain. rustup installs it on the first call of cargo, unless RUSTUP_AUTO_INSTALL=0.
toolchain=$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$(dirname "$0")/../rust-toolchain.toml")
if ! cargo --version >/dev/null 2>&1; then
  if $check_only || ! rustup toolchain install "$toolchain" --profile minimal --component rustfmt --component clippy; then
    die "Rust $toolchain is not installed: run 'rustup toolchain install $toolchain', or use another one with RUSTUP_TOOLCHAIN=stable"
  fi
fi
if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
  # Minimal toolchains have neither; only `make test` needs them.
  if command -v rustup >/dev/null && ! $check_only; then
    say "adding rustfmt and clippy to the Rust toolchain"
    rustup component add rustfmt clippy
  else
    say "this Rust toolchain has no rustfmt or clippy: install them for \`make test\`"
  fi
fi
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
say "missing: ${missing[*]}"
if $check_only; then exit 1; fi

# --- installation ------------------------------------------------------------------------------------------------------

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "not root and no sudo: run this script as root once"
  as_root=(sudo)
fi

# Signing key and URI of the bookworm mirror in this machine's apt sources, on one line.
bookworm_mirror() {
  awk '
    FNR == 1 { uri = ""; key = ""; suites = "" }
    function flush() {
      if (suites ~ /(^| )bookworm( |$)/ && uri != "") { print (key == "" ? "-" : key), uri; found = 1; exit }
      uri = ""; key = ""; suites = ""
    }
    FILENAME ~ /\.sources$/ {
      if ($0 ~ /^[ \t]*$/) { flush(); next }
      if ($1 == "URIs:") uri = $2
      if ($1 == "Suites:") { $1 = ""; suites = $0 }
      if ($1 == "Signed-By:") key = $2
      next
    }
    $1 == "deb" {
      options = ""; field = 2
      if ($2 ~ /^\[/) { while ($field !~ /\]$/) field++; field++ ; for (i = 2; i < field; i++) options = options " " $i }
      if ($(field + 1) == "bookworm") {
        key = "-"
        if (match(options, /signed-by=[^] ]+/)) key = substr(options, RSTART + 10, RLENGTH - 10)
        print key, $field; found = 1; exit
      }
    }
    END { if (!found && uri != "" && suites ~ /(^| )bookworm( |$)/) print (key == "" ? "-" : key), uri }
  ' "$@" | head -n 1
}

add_backports() {
  apt-cache policy 2>/dev/null | grep 'bookworm-backports' >/dev/null && return 0
  local files=() file key uri
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -f "$file" ] && files+=("$file")
  done
  read -r key uri < <(bookworm_mirror "${files[@]}") || true
  [ -n "${uri:-}" ] || die "no apt source for bookworm found, so bookworm-backports (Mesa 25) cannot be added: add it manually"
  local options=""
  [ "$key" = "-" ] || options="[signed-by=$key] "
  say "adding bookworm-backports from this machine's own mirror (for Mesa 25)"
  echo "deb ${options}${uri} bookworm-backports main" | "${as_root[@]}" tee /etc/apt/sources.list.d/indrik-backports.list >/dev/null
}

wants() { local item; for item in "${missing[@]}"; do [ "$item" = "$1" ] && return 0; done; return 1; }

install_apt() {
  export DEBIAN_FRONTEND=noninteractive
  local packages=()
  wants loader && packages+=(libvulkan1)
  wants validation && packages+=(vulkan-validationlayers)
  wants cxx && packages+=(g++)
  wants mesa && on_bookworm && add_backports
  say "apt-get update"
  # An unreachable third-party source is not fatal: what matters is whether the packages below are found.
  "${as_root[@]}" apt-get update -qq || say "apt-get update reported errors; continuing with the package lists there are"
  if wants mesa; then
    if on_bookworm; then
      say "installing mesa-vulkan-drivers from bookworm-backports"
      "${as_root[@]}" apt-get install -y -qq --no-install-recommends -t bookworm-backports mesa-vulkan-drivers >/dev/null
    else
      packages+=(mesa-vulkan-drivers)
    fi
  fi
  if [ ${#packages[@]} -gt 0 ]; then
    say "installing ${packages[*]}"
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
  fi
}

install_dnf() {
  local packages=()
  wants loader && packages+=(vulkan-loader)
  wants mesa && packages+=(mesa-vulkan-drivers)
  wants validation && packages+=(vulkan-validation-layers)
  wants cxx && packages+=(gcc-c++)
  say "installing ${packages[*]}"
  "${as_root[@]}" dnf install -y -q "${packages[@]}"
}

install_pacman() {
  local packages=()
  wants loader && packages+=(vulkan-icd-loader)
  wants mesa && packages+=(vulkan-radeon vulkan-swrast)
  wants validation && packages+=(vulkan-validation-layers)
  wants cxx && packages+=(gcc)
  say "installing ${packages[*]}"
  # No -y: Arch does not support partial upgrades.
  "${as_root[@]}" pacman -S --needed --noconfirm "${packages[@]}" || die "run 'pacman -Syu' first, then this again"
}

if command -v apt-get >/dev/null; then install_apt
elif command -v dnf >/dev/null; then install_dnf
elif command -v pacman >/dev/null; then install_pacman
else die "no apt, dnf or pacman found: install manually the Vulkan loader, Mesa's Vulkan drivers (lavapipe and RADV), the Khronos validation layer and a C++ compiler"
fi

has_loader || die "the Vulkan loader is still missing after the installation"
has_cpu_driver || die "Mesa's CPU driver (lvp_icd) is still missing after the installation"
has_amd_driver || die "Mesa's AMD driver (radeon_icd) is still missing after the installation"
has_validation || die "the validation layer is still missing after the installation"
has_cxx || die "a C++ compiler is still missing after the installation"
say "done"

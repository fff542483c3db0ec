#!/usr/bin/env bash
# Installs Indrik's dependencies other than Rust: the Vulkan loader, Mesa's Vulkan drivers, the Khronos validation layer
# and a C++ compiler. Installs only what is missing, so a second run takes a fraction of a second. Where it cannot install
# (no root and no sudo, or a package manager it does not drive), it prints the exact commands.
#
#   scripts/setup.sh            install missing dependencies
#   scripts/setup.sh --check    only list missing dependencies; exit 1 if there are any
#   scripts/setup.sh --print    print the commands that would install them; exit 1 if there are any
#
# Run on Debian 12 and Ubuntu 24.04. Package names for other distributions are from their spec files and documentation.
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

mode=install
case "${1:-}" in
  "") ;;
  --check) mode=check ;;
  --print) mode=print ;;
  -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
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
# shellcheck source=/dev/null
on_bookworm() { (. /etc/os-release 2>/dev/null && [ "${VERSION_CODENAME:-}" = bookworm ]); }
mesa_is_old() {
  on_bookworm || return 1
  local version
  version=$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null) || return 0
  dpkg --compare-versions "$version" lt 24
}

missing=()
if [ -n "${SETUP_MISSING:-}" ]; then
  # For the test of this script.
  read -ra missing <<<"$SETUP_MISSING"
else
  has_loader || missing+=(loader)
  if ! has_cpu_driver || ! has_amd_driver || mesa_is_old; then missing+=(mesa); fi
  has_validation || missing+=(validation)
  has_cxx || missing+=(cxx)
fi

# Cargo is needed to build, not to install packages: `--print` works without it.
if [ "$mode" != print ]; then
  command -v cargo >/dev/null || die "cargo not found: install Rust from your distribution or https://rustup.rs, then run this again"
  # rust-toolchain.toml pins the toolchain. rustup installs it on the first call of cargo, unless RUSTUP_AUTO_INSTALL=0.
  toolchain=$(sed -n 's/^channel = "\(.*\)"$/\1/p' "$(dirname "$0")/../rust-toolchain.toml")
  if ! cargo --version >/dev/null 2>&1; then
    if [ "$mode" = check ] || ! rustup toolchain install "$toolchain" --profile minimal --component rustfmt --component clippy; then
      die "Rust $toolchain is not installed: run 'rustup toolchain install $toolchain', or use another one with RUSTUP_TOOLCHAIN=stable"
    fi
  fi
  if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    # Minimal toolchains have neither; only `make test` needs them.
    if command -v rustup >/dev/null && [ "$mode" = install ]; then
      say "adding rustfmt and clippy to the Rust toolchain"
      rustup component add rustfmt clippy
    else
      say "this Rust toolchain has no rustfmt or clippy: install them for \`make test\`"
    fi
  fi
fi
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
say "missing: ${missing[*]}"
if [ "$mode" = check ]; then exit 1; fi

# --- installation ------------------------------------------------------------------------------------------------------

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
  # Without sudo the commands can only be printed, for whoever is root here.
  if ! command -v sudo >/dev/null; then mode=print; as_root=(); fi
fi

# Runs a command as root, without its progress messages, or prints it in a form that can be pasted.
root() {
  local word line=""
  for word in "${as_root[@]}" "$@"; do
    [[ "$word" =~ ^[A-Za-z0-9_./=:+-]+$ ]] || word=${word@Q}
    line+=" $word"
  done
  if [ "$mode" = print ]; then
    printf ' %s\n' "$line"
  else
    say "running$line"
    "${as_root[@]}" "$@" >/dev/null
  fi
}

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
  root sh -c "echo 'deb ${options}${uri} bookworm-backports main' > /etc/apt/sources.list.d/indrik-backports.list"
}

# Packages of a dependency: MANAGER ITEM. The CPU driver is what tests run on, the AMD driver what `make rdna3` compiles
# with; on a machine with another GPU, its driver is beside them.
packages_of() {
  case "$1-$2" in
    apt-loader) echo libvulkan1 ;;
    apt-mesa) echo mesa-vulkan-drivers ;;
    apt-validation) echo vulkan-validationlayers ;;
    apt-cxx) echo g++ ;;
    dnf-loader) echo vulkan-loader ;;
    dnf-mesa) echo mesa-vulkan-drivers ;;
    dnf-validation) echo vulkan-validation-layers ;;
    dnf-cxx) echo gcc-c++ ;;
    pacman-loader) echo vulkan-icd-loader ;;
    pacman-mesa) echo vulkan-radeon vulkan-swrast ;;
    pacman-validation) echo vulkan-validation-layers ;;
    pacman-cxx) echo gcc ;;
    zypper-loader) echo libvulkan1 ;;
    zypper-mesa) echo libvulkan_radeon libvulkan_lvp ;;
    zypper-validation) echo vulkan-validationlayers ;;
    zypper-cxx) echo gcc-c++ ;;
    apk-loader) echo vulkan-loader ;;
    apk-mesa) echo mesa-vulkan-ati mesa-vulkan-swrast ;;
    apk-validation) echo vulkan-validation-layers ;;
    apk-cxx) echo build-base ;;
    nix-loader) echo vulkan-loader ;;
    nix-mesa) echo mesa ;;
    nix-validation) echo vulkan-validation-layers ;;
    nix-cxx) echo gcc ;;
    *) die "no package of $1 is known for '$2'" ;;
  esac
}

# Sets `packages` to those of everything that is missing, except the items given.
collect() { # MANAGER [ITEM…]
  local manager=$1 item names
  shift
  packages=()
  for item in "${missing[@]}"; do
    [[ " $* " == *" $item "* ]] && continue
    read -ra names < <(packages_of "$manager" "$item")
    packages+=("${names[@]}")
  done
}

wants() { [[ " ${missing[*]} " == *" $1 "* ]]; }

install_apt() {
  export DEBIAN_FRONTEND=noninteractive
  if wants mesa && on_bookworm; then
    add_backports
    collect apt mesa
  else
    collect apt
  fi
  # An unreachable third-party source is not fatal: what matters is whether the packages below are found.
  root apt-get update -qq || say "apt-get update reported errors; continuing with the package lists there are"
  if wants mesa && on_bookworm; then
    root apt-get install -y -qq --no-install-recommends -t bookworm-backports "$(packages_of apt mesa)"
  fi
  if [ ${#packages[@]} -gt 0 ]; then root apt-get install -y -qq --no-install-recommends "${packages[@]}"; fi
}

install_dnf() {
  collect dnf
  root dnf install -y -q "${packages[@]}"
}

install_pacman() {
  collect pacman
  # No -y: Arch does not support partial upgrades.
  root pacman -S --needed --noconfirm "${packages[@]}" || die "run 'pacman -Syu' first, then this again"
}

# Managers that this script does not drive: it prints what to run.
advise() { # MANAGER COMMAND…
  collect "$1"
  shift
  root "$@" "${packages[@]}"
}

untested() { say "this script was not run on $1; package names may differ there"; }

manager=
for candidate in apt-get dnf pacman zypper apk nix-shell; do
  if command -v "$candidate" >/dev/null; then manager=$candidate; break; fi
done
case "$manager" in
  apt-get) ;;
  dnf) untested "Fedora and its relatives" ;;
  pacman) untested "Arch and its relatives" ;;
  zypper) untested openSUSE; mode=print ;;
  apk) untested Alpine; mode=print ;;
  nix-shell) untested NixOS; mode=print; as_root=() ;;
  *) die "no apt-get, dnf, pacman, zypper, apk or nix-shell found: install manually the Vulkan loader, Mesa's Vulkan drivers (lavapipe and RADV), the Khronos validation layer and a C++ compiler" ;;
esac
if [ "$mode" = print ]; then
  case "$manager-${#as_root[@]}" in
    nix-shell-*) say "to build in a shell that has them (set hardware.graphics.enable = true for drivers):" ;;
    *-1) say "to install them, run:" ;;
    *) say "to install them, run as root:" ;;
  esac
fi
case "$manager" in
  apt-get) install_apt ;;
  dnf) install_dnf ;;
  pacman) install_pacman ;;
  zypper) advise zypper zypper install ;;
  apk) advise apk apk add ;;
  nix-shell) advise nix nix-shell -p ;;
esac
if [ "$mode" = print ]; then exit 1; fi

has_loader || die "the Vulkan loader is still missing after the installation"
has_cpu_driver || die "Mesa's CPU driver (lvp_icd) is still missing after the installation"
has_amd_driver || die "Mesa's AMD driver (radeon_icd) is still missing after the installation"
has_validation || die "the validation layer is still missing after the installation"
has_cxx || die "a C++ compiler is still missing after the installation"
say "done"

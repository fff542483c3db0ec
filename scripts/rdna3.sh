#!/usr/bin/env bash
# Prints docs/rdna3.md: every pipeline as Mesa's RADV compiles it for RDNA3, with no such GPU present.
#
#   scripts/rdna3.sh PATH-TO-INDRIK
set -euo pipefail
indrik=${1:?usage: scripts/rdna3.sh PATH-TO-INDRIK}
icd=$(ls /usr/share/vulkan/icd.d/radeon_icd*.json /usr/local/share/vulkan/icd.d/radeon_icd*.json 2>/dev/null | grep -vE 'i[36]86' | head -n 1) || true
[ -n "$icd" ] || { echo "rdna3: Mesa's RADV is not installed: scripts/setup.sh installs it" >&2; exit 1; }

cat <<'TEXT'
# Kernels on RDNA3

Written by `make rdna3`: every pipeline that Indrik may use, as Mesa's RADV compiles it for the Radeon 780M (phoenix) and
for Strix Halo (gfx1151), on a machine that has neither. Waves per SIMD is the occupancy as the driver reports it; a test fails
when anything spills or needs scratch.
TEXT
printf '\n## Decoding on a Radeon 780M: an estimate\n\n'
"$indrik" kernels --estimate
for family in phoenix gfx1151; do
  printf '\n## %s\n\n' "$family"
  RADV_FORCE_FAMILY=$family VK_DRIVER_FILES=$icd VK_ICD_FILENAMES=$icd "$indrik" kernels 2>/dev/null
done

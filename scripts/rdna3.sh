#!/usr/bin/env bash
# Writes rdna3.csv and rdna3.md: how Mesa's RADV compiles every kernel variant for RDNA3, without such a GPU.
#
#   scripts/rdna3.sh PATH-TO-INDRIK OUTPUT-FOLDER
set -euo pipefail
usage="usage: scripts/rdna3.sh PATH-TO-INDRIK OUTPUT-FOLDER"
indrik=${1:?$usage}
out=${2:?$usage}
icd=$(for dir in /usr/share /usr/local/share; do compgen -G "$dir/vulkan/icd.d/radeon_icd*.json"; done | grep -vE 'i[36]86' | head -n 1) || true
[ -n "$icd" ] || { echo "rdna3: Mesa's RADV is not installed: scripts/setup.sh installs it" >&2; exit 1; }
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

for family in phoenix gfx1151; do
  RADV_FORCE_FAMILY=$family VK_DRIVER_FILES=$icd VK_ICD_FILENAMES=$icd \
    "$indrik" kernels --csv "$temporary/$family.csv" >/dev/null 2>"$temporary/log" || { tail -n 5 "$temporary/log" >&2; exit 1; }
done

# One row per variant. Where the families differ, a cell holds both values: phoenix/gfx1151. Both compile the same
# variants in the same order.
awk -F, '
  FNR == 1 { next }
  NR == FNR { first[FNR] = $0; count = FNR; next }
  {
    fields = split(first[FNR], cell, ",")
    for (i = 1; i <= 3; i++) if (cell[i] != $i) { print "rdna3: row " FNR " differs: " $0 > "/dev/stderr"; exit 1 }
    row = cell[1]
    for (i = 2; i <= fields; i++) row = row "," (cell[i] == $i ? $i : cell[i] "/" $i)
    print row
  }
  END { if (FNR != count) { print "rdna3: the families have different variants" > "/dev/stderr"; exit 1 } }
' "$temporary/phoenix.csv" "$temporary/gfx1151.csv" > "$temporary/rdna3.csv"

summary() { # FAMILY-INDEX (1: phoenix, 2: gfx1151)
  awk -F, -v family="$1" '
    function value(cell,  part) { return split(cell, part, "/") > 1 ? part[family] + 0 : cell + 0 }
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    {
      kernel = $1
      if (!(kernel in variants)) { order[++kernels] = kernel; waves[kernel] = 99 }
      variants[kernel]++
      v = value($column["vgprs"]); if (v > vgprs[kernel]) vgprs[kernel] = v
      v = value($column["waves_per_simd"]); if (v < waves[kernel]) waves[kernel] = v
      spills[kernel] += value($column["spilled_vgprs"]) + value($column["spilled_sgprs"])
      scratch[kernel] += value($column["scratch_bytes"])
      v = value($column["lds_bytes"]); if (v > lds[kernel]) lds[kernel] = v
      v = value($column["code_bytes"]); if (v > code[kernel]) code[kernel] = v
      if (value($column["v_dot4"]) > 0) dot[kernel]++
      if (value($column["v_wmma"]) > 0) wmma[kernel]++
    }
    END {
      print "| kernel | variants | max VGPRs | min waves/SIMD | spills | scratch | max LDS, bytes | max code, bytes | with v_dot4 | with v_wmma |"
      print "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
      for (i = 1; i <= kernels; i++) {
        k = order[i]
        printf "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", k, variants[k], vgprs[k], waves[k], spills[k],
          scratch[k], lds[k], code[k], dot[k], wmma[k]
      }
    }' "$temporary/rdna3.csv"
}

{
  cat <<'TEXT'
# Kernels on RDNA3

Written by `make rdna3`: how Mesa's RADV compiles every kernel variant for the Radeon 780M (phoenix) and
for Strix Halo (gfx1151). RADV's null device compiles without such a GPU; nothing here was run on one.

[rdna3.csv](rdna3.csv) has one row per variant. Where the two GPUs differ, a cell holds both values:
phoenix/gfx1151. The tables below summarise it per kernel. A test fails if any variant spills registers
or needs scratch memory. Waves per SIMD is the occupancy that the driver reports.

## Decode on a Radeon 780M: an estimate

TEXT
  "$indrik" kernels --estimate
  printf '\n## phoenix\n\n%s\n\n' "$(head -n 1 "$temporary/phoenix.csv" | cut -c 3-)"
  summary 1
  printf '\n## gfx1151\n\n%s\n\n' "$(head -n 1 "$temporary/gfx1151.csv" | cut -c 3-)"
  summary 2
} > "$temporary/rdna3.md"
mkdir -p "$out"
mv "$temporary/rdna3.csv" "$temporary/rdna3.md" "$out"

#!/usr/bin/env bash
# Checks the Markdown files of this repository:
#   - prose is wrapped at 100 columns (tables, code blocks, link targets and generated pages are exempt);
#   - relative links and their #anchors resolve;
#   - paths, source files and Rust items (`Type::item`, `TypeName`) named in `inline code` exist.
#
#   scripts/check_docs.sh            the whole repository; exit 1 if anything is wrong
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

files=$(find . \( -name target -o -name .git -o -name node_modules -o -name __pycache__ \) -prune -o -print | sed 's|^\./||')
mapfile -t pages < <(grep '\.md$' <<<"$files")

items=$(find crates -name '*.rs' -exec grep -hoE '[A-Za-z_][A-Za-z0-9_]*' {} + | sort -u)

# The C locale makes every awk count bytes; continuation bytes of UTF-8 are removed before lengths are taken.
LC_ALL=C awk '
  function complain(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; wrong = 1 }

  # The anchor that forges make of a heading.
  function slug(text) {
    text = tolower(text)
    gsub(/[^a-z0-9 _\200-\377-]/, "", text)
    gsub(/ /, "-", text)
    return text
  }

  # dir/../x → x
  function normal(path,   parts, count, kept, i, joined) {
    count = split(path, parts, "/")
    kept = 0
    for (i = 1; i <= count; i++) {
      if (parts[i] == "." || parts[i] == "") continue
      if (parts[i] == ".." && kept > 0) { kept--; continue }
      stack[++kept] = parts[i]
    }
    joined = ""
    for (i = 1; i <= kept; i++) joined = joined (i > 1 ? "/" : "") stack[i]
    return joined
  }

  function check_link(target,   anchor, path) {
    if (target ~ /^(https?|mailto):/) return
    anchor = ""
    if (index(target, "#")) { anchor = substr(target, index(target, "#") + 1); sub(/#.*/, "", target) }
    path = target == "" ? FILENAME : normal(here "/" target)
    if (!(path in exists)) { complain("link to " target ", which does not exist"); return }
    if (anchor != "" && !((path "#" anchor) in anchors)) complain("link to " path "#" anchor ", which has no such heading")
  }

  function check_item(path,   parts, count) {
    sub(/\(\)$/, "", path)
    count = split(path, parts, "::")
    if (!(parts[1] in items) && !(("crates/" parts[1]) in exists) || !(parts[count] in items)) complain("no Rust item " path)
  }

  function check_path(path,   first, rest) {
    sub(/:[0-9]+$/, "", path)
    sub(/\/$/, "", path)
    if (path ~ /[^A-Za-z0-9_.\/-]/ || path ~ /^[\/.][a-z]*$/ || path ~ /^\//) return
    first = path; sub(/\/.*/, "", first)
    rest = substr(path, length(first) + 2); sub(/\/.*/, "", rest)
    if (rest != "" && (first in top || ((("crates/" first) in exists) && rest ~ /^(src|tests|build|build\.rs|Cargo\.toml)$/))) {
      if (!(path in exists) && !(("crates/" path) in exists) && !(normal(here "/" path) in exists))
        complain("path " path " does not exist")
    } else if (path ~ /\.(rs|comp|glsl|sh|py|mjs|svg|service|yml)$/ && !(path in suffix)) {
      complain("no file " path)
    }
  }

  listing == "items" { items[$0] = 1; next }
  listing {
    exists[$0] = 1
    path = $0
    suffix[path] = 1
    while (index(path, "/")) { path = substr(path, index(path, "/") + 1); suffix[path] = 1 }
    next
  }

  FNR == 1 {
    here = FILENAME
    if (!sub(/\/[^\/]*$/, "", here)) here = "."
    fenced = 0
    pass[FILENAME]++
  }
  /^ *```/ { fenced = !fenced; next }
  fenced { next }

  # The first pass collects headings, the second checks.
  pass[FILENAME] == 1 {
    if (/^Written by `make /) generated[FILENAME] = 1
    if (/^#+ /) { text = $0; sub(/^#+ +/, "", text); anchors[FILENAME "#" slug(text)] = 1 }
    next
  }

  {
    text = $0
    while (match(text, /\]\([^)]*\)/)) {
      check_link(substr(text, RSTART + 2, RLENGTH - 3))
      text = substr(text, RSTART + RLENGTH)
    }
    text = $0
    while (match(text, /`[^`]+`/)) {
      code = substr(text, RSTART + 1, RLENGTH - 2)
      if (code ~ /^[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)+(\(\))?$/) check_item(code)
      else if (code ~ /^[A-Z][a-z0-9]+[A-Z][A-Za-z0-9]+$/) check_item(code)
      else check_path(code)
      text = substr(text, RSTART + RLENGTH)
    }
  }
  !/^( *\||#|    |<!--|!\[)/ {
    text = $0
    gsub(/\]\([^)]*\)/, "]", text)
    gsub(/https?:[^ )]*/, "", text)
    gsub(/[\200-\277]/, "", text)
    if (length(text) > 100 && !(FILENAME in generated)) complain("line of " length(text) " columns; wrap prose at 100")
  }

  BEGIN { split("crates docs scripts clients packaging fuzz web .github .ci", names, " "); for (i in names) top[names[i]] = 1 }
  END { exit wrong }
' listing=items <(echo "$items") listing=1 <(echo "$files") listing= "${pages[@]}" "${pages[@]}"

#!/usr/bin/env python3
"""Draws what a tmux pane shows, with its colours, as an SVG picture for docs.

usage: tmux capture-pane -e -p | scripts/screenshot.py TITLE > docs/NAME.svg
"""
import html
import re
import sys
import unicodedata

CELL, LINE, PAD = 7.8, 17, 16
FOREGROUND, BACKGROUND = "#d8dee9", "#2e3440"
# The 16 colours of a terminal, and the shades of its 256 colours.
PALETTE = ["#3b4252", "#bf616a", "#a3be8c", "#ebcb8b", "#81a1c1", "#b48ead", "#88c0d0", "#e5e9f0",
           "#4c566a", "#d08770", "#a3be8c", "#ebcb8b", "#81a1c1", "#b48ead", "#8fbcbb", "#eceff4"]
LEVELS = [0, 95, 135, 175, 215, 255]
SEQUENCE = re.compile(r"\x1b\[([0-9;:]*)m|\x1b.|(.)", re.S)


def colour(index):
    """A colour of the 256."""
    if index < 16:
        return PALETTE[index]
    if index >= 232:
        return "#" + f"{8 + 10 * (index - 232):02x}" * 3
    return "#" + "".join(f"{LEVELS[(index - 16) // step % 6]:02x}" for step in (36, 6, 1))


def apply(style, codes):
    """The style after an SGR sequence (ECMA-48, 8.3.117)."""
    codes = [int(code or 0) for code in re.split("[;:]", codes)]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = {}
        elif code in (1, 2, 3, 7):
            style = style | {code: True}
        elif code == 22:
            style = {key: value for key, value in style.items() if key not in (1, 2)}
        elif code in (23, 27):
            style = {key: value for key, value in style.items() if key != code - 20}
        elif code in (39, 49):
            style = {key: value for key, value in style.items() if key != code - 9}
        elif code in (38, 48):
            kind, *rest = codes
            value = colour(rest[0]) if kind == 5 else "#" + "".join(f"{part:02x}" for part in rest[:3])
            style, codes = style | {code - 8: value}, rest[1:] if kind == 5 else rest[3:]
        elif code % 10 < 8 and code // 10 in (3, 4, 9, 10):
            bright = 8 if code >= 90 else 0
            style = style | {30 if code // 10 in (3, 9) else 40: PALETTE[code % 10 + bright]}
    return style


def runs(lines):
    """Texts of one style, as (row, column, width, text, style)."""
    style = {}
    for row, line in enumerate(lines):
        column, start, text, drawn = 0, 0, "", style
        for codes, character in SEQUENCE.findall(line):
            if character:
                if style != drawn:
                    yield row, start, column - start, text, drawn
                    start, text, drawn = column, "", style
                text += character
                column += 2 if unicodedata.east_asian_width(character) in "WF" else 1
            else:
                style = apply(style, codes)
        yield row, start, column - start, text, drawn


def svg(lines, title):
    lines = [line.rstrip("\n") for line in lines]
    while lines and not re.sub(r"\x1b\[[^m]*m", "", lines[-1]).strip():
        lines.pop()
    drawn = [run for run in runs(lines) if run[3].strip() or run[4]]
    columns = max(column + width for _, column, width, _, _ in drawn)
    width, height = round(columns * CELL + 2 * PAD), len(lines) * LINE + 2 * PAD
    shapes = []
    for row, column, cells, text, style in drawn:
        fill, back = style.get(30, FOREGROUND), style.get(40)
        if style.get(7):
            fill, back = back or BACKGROUND, fill
        x, y = PAD + column * CELL, PAD + row * LINE
        if back:
            shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{cells * CELL:.1f}" height="{LINE}" fill="{back}"/>')
        if text.strip():
            extra = ' font-weight="bold"' * (1 in style) + ' opacity="0.6"' * (2 in style)
            extra += ' font-style="italic"' * (3 in style) + f' fill="{fill}"' * (fill != FOREGROUND)
            shapes.append(f'<text x="{x:.1f}" y="{y + 12}" textLength="{cells * CELL:.1f}"{extra}>{html.escape(text)}</text>')
    style = "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:13px;white-space:pre}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" xml:space="preserve">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{style}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
        f'<g fill="{FOREGROUND}">',
        *shapes,
        "</g>",
        "</svg>",
    ])


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(__doc__)
    print(svg(sys.stdin.readlines(), sys.argv[1]))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Records docs/demo.cast (asciicast v2) and docs/demo.svg, the recording in README.md, from a real run.

usage: scripts/record_demo.py PATH-TO-INDRIK   (`make recording`; needs pyte from the Python package index)

The commands are typed into a shell on a pseudo-terminal, with an empty model store and empty caches. Pauses of more
than two seconds are shortened to two; everything else is as it happened.
"""
import codecs
import fcntl
import html
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

COLUMNS, ROWS = 108, 28
PROMPT = "$ "
TYPING_SECONDS = 0.03
MAX_PAUSE_SECONDS = 2.0
# Frames closer together than this become one.
MIN_FRAME_SECONDS = 0.1
LAST_FRAME_SECONDS = 6.0

# What is typed, and what must appear before the next line is typed.
REQUEST = '{"model": "smollm2", "messages": [{"role": "user", "content": "Name three planets."}], "temperature": 0}'
STEPS = [
    ("indrik run smollm2 -t 0 -p 'What is the capital of France?'", r"is Paris\.[\s\S]*\$ $"),
    ("indrik serve -m smollm2 &", "is ready at"),
    ("", r"\$ $"),
    ("curl -s localhost:8006/v1/chat/completions -H 'Content-Type: application/json' \\", "> $"),
    (f"  -d '{REQUEST}' \\", "> $"),
    ("  | grep -o '\"content\":\"[^\"]*\"'", r'"content":[\s\S]*\$ $'),
]

# Where models come from, if not from the hub itself.
KEPT_VARIABLES = ("HF_ENDPOINT", "HTTPS_PROXY", "SSL_CERT_FILE", "INDRIK_DEVICE")

# ECMA-48 control sequences: colours and cursor movements between the words that are waited for.
CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\r")


class Terminal:
    """A shell on a pseudo-terminal, and everything it printed."""

    def __init__(self, environment):
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"], stdin=follower, stdout=follower, stderr=follower,
            env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)
        self.start = time.monotonic()
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.events = []

    def read(self, seconds):
        """Reads for at most this long; the text, or nothing."""
        if not select.select([self.leader], [], [], seconds)[0]:
            return ""
        try:
            text = self.decoder.decode(os.read(self.leader, 65536))
        except OSError:  # the shell has ended
            return ""
        self.events.append((time.monotonic() - self.start, text))
        return text

    def wait_for(self, pattern, seconds=900):
        seen, deadline = "", time.monotonic() + seconds
        while not re.search(pattern, CONTROL_SEQUENCE.sub("", seen)):
            if time.monotonic() > deadline:
                raise SystemExit(f"record_demo: {pattern!r} did not appear; the last output:\n{seen[-3000:]}")
            seen += self.read(0.1)

    def type(self, line):
        for character in line:
            os.write(self.leader, character.encode())
            self.read(TYPING_SECONDS)
            time.sleep(TYPING_SECONDS)
        os.write(self.leader, b"\r")


def record(indrik, home):
    """The output of the whole session, as (seconds, text)."""
    programs = os.path.join(home, "bin")
    os.mkdir(programs)
    os.symlink(os.path.abspath(indrik), os.path.join(programs, "indrik"))
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment |= {
        "PATH": f"{programs}:{os.environ['PATH']}", "HOME": home, "TERM": "xterm-256color", "LANG": "C.UTF-8",
        "PS1": PROMPT, "INPUTRC": "/dev/null",
    }
    terminal = Terminal(environment)
    terminal.wait_for(r"\$ $")
    for line, expected in STEPS:
        terminal.type(line)
        terminal.wait_for(expected)
        while terminal.read(1.0):
            pass
    recorded = len(terminal.events)
    terminal.type("kill %1; wait; exit")
    while terminal.shell.poll() is None:
        terminal.read(0.1)
    return terminal.events[:recorded]


def shorten(events):
    """The events with long pauses cut."""
    result, last, removed = [], 0.0, 0.0
    for seconds, text in events:
        removed += max(0.0, seconds - last - MAX_PAUSE_SECONDS)
        last = seconds
        result.append((seconds - removed, text))
    return result


def frames(events):
    """What the screen showed, as (seconds, lines)."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    result = [(0.0, [""] * ROWS)]
    for seconds, text in events:
        stream.feed(text)
        lines = [line.rstrip() for line in screen.display]
        if seconds - result[-1][0] < MIN_FRAME_SECONDS:
            result[-1] = (result[-1][0], lines)
        elif result[-1][1] != lines:
            result.append((seconds, lines))
    return result


def spans(shots, end):
    """For each row the texts it showed, as (row, text, first second, last second)."""
    for row in range(ROWS):
        begin, text = 0.0, ""
        for seconds, lines in shots + [(end, [None] * ROWS)]:
            if lines[row] != text:
                if text:
                    yield row, text, begin, seconds
                begin, text = seconds, lines[row]


def svg(shots):
    """An animated picture: every text of every row is visible for its time. Without animation: the last screen."""
    cell, line, pad = 7.8, 17, 16
    width, height = round(COLUMNS * cell + 2 * pad), ROWS * line + 2 * pad
    end = shots[-1][0] + LAST_FRAME_SECONDS
    rules, texts = [], []
    for index, (row, text, begin, until) in enumerate(spans(shots, end)):
        first, last = (100 * seconds / end for seconds in (begin, until))
        stays = last >= 100
        keyframes = ["0%{visibility:hidden}"] * (first > 0) + [f"{first:.2f}%{{visibility:visible}}"]
        keyframes += [f"{last:.2f}%,100%{{visibility:hidden}}"] * (not stays)
        rules.append(f"@keyframes k{index}{{{''.join(keyframes)}}}#t{index}{{animation-name:k{index}}}")
        kind = " ".join(["c"] * text.startswith(PROMPT) + ["e"] * stays)
        texts.append(
            f'<text id="t{index}" class="{kind}" x="{pad}" y="{pad + 12 + row * line}" '
            f'textLength="{len(text) * cell:.0f}">{html.escape(text)}</text>'
        )
    style = (
        "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre;"
        f"visibility:hidden;animation:{end:.2f}s step-end infinite}}text.e{{visibility:visible}}text.c{{fill:#a3be8c}}"
        "@media(prefers-reduced-motion:reduce){text{animation:none}}"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'xml:space="preserve">',
        "<title>indrik run pulls SmolLM2 and answers; indrik serve answers curl</title>",
        f"<style>{style}{''.join(rules)}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#2e3440"/>',
        *texts,
        "</svg>\n",
    ])


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as home:
        events = record(sys.argv[1], home)
    events = shorten([(seconds, text.replace(home, "~")) for seconds, text in events])
    docs = Path(__file__).resolve().parent.parent / "docs"
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "Indrik: run, serve, ask"}
    lines = [json.dumps(header)]
    lines += [json.dumps([round(seconds, 3), "o", text], ensure_ascii=False) for seconds, text in events]
    (docs / "demo.cast").write_text("\n".join(lines) + "\n")
    shots = frames(events)
    (docs / "demo.svg").write_text(svg(shots))
    print(f"{len(shots)} frames, {shots[-1][0]:.0f} s, in docs/demo.cast and docs/demo.svg")


if __name__ == "__main__":
    main()

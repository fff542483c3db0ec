#!/usr/bin/env python3
"""Disassembles what NVIDIA's driver has compiled: machine code (SASS) of the pipelines in Indrik's pipeline cache.

    indrik bench --shape gemma3-27b -p 0 -n 8       # fills the cache; INDRIK_CACHE_DIR moves it
    pip install zstandard nvidia-cuda-nvdisasm
    scripts/sass.py CACHE/pipelines/*.bin --find HMMA --out sass

Writes a listing per pipeline and prints its most frequent instructions. Pipelines have no names in the cache: --find
selects those that contain an instruction. The driver stores each pipeline compressed with zstd, machine code and metadata together, in a
format that is not documented: the code is found by its EXIT instruction and by what the disassembler accepts.
"""

import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import zstandard
except ImportError:
    sys.exit("sass: the package zstandard is missing: pip install zstandard")

ZSTD = bytes.fromhex("28b52ffd")
# The low half of an EXIT without a predicate, and the length of an instruction.
EXIT = bytes.fromhex("4d79000000000000")
INSTRUCTION = 16
# Metadata before the code, in instructions: tried in this order.
OFFSETS = [20, 17, *range(2, 64)]
MNEMONIC = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9.]*)")


def pipelines(cache):
    """The decompressed entries of a cache, each once."""
    seen = set()
    for match in re.finditer(re.escape(ZSTD), cache):
        try:
            entry = zstandard.ZstdDecompressor().decompressobj().decompress(cache[match.start() :])
        except zstandard.ZstdError:
            continue
        if EXIT in entry and entry not in seen:
            seen.add(entry)
            yield entry


def disassemble(nvdisasm, target, code):
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(code)
        file.flush()
        result = subprocess.run([nvdisasm, "-b", target, file.name], capture_output=True, text=True)
    return None if result.stderr else re.sub(r" */\* 0x[0-9a-f]+ \*/", "", result.stdout)


def listing(nvdisasm, target, entry):
    exit_at = entry.rindex(EXIT)
    first = exit_at
    while first >= INSTRUCTION and any(entry[first - INSTRUCTION : first]):
        first -= INSTRUCTION
    for offset in OFFSETS:
        text = disassemble(nvdisasm, target, entry[first + offset * INSTRUCTION : exit_at + INSTRUCTION])
        if text:
            return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=pathlib.Path, nargs="+", help="pipeline cache files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("sass"), help="folder of the listings")
    parser.add_argument("--find", help="only pipelines with an instruction that starts with this")
    parser.add_argument("--target", default="SM90", help="architecture (default: SM90, Hopper)")
    parser.add_argument("--nvdisasm", default=shutil.which("nvdisasm"), help="the disassembler, if it is not in PATH")
    arguments = parser.parse_args()
    if not arguments.nvdisasm:
        sys.exit("sass: nvdisasm is missing: pip install nvidia-cuda-nvdisasm, or pass --nvdisasm")
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    entries = (entry for cache in arguments.cache for entry in pipelines(cache.read_bytes()))
    for index, entry in enumerate(entries):
        text = listing(arguments.nvdisasm, arguments.target, entry)
        if text is None:
            failed += 1
            continue
        counts = collections.Counter(MNEMONIC.findall(text))
        if arguments.find and not any(name.startswith(arguments.find) for name in counts):
            continue
        path = arguments.out / f"{index}.txt"
        path.write_text(text)
        most = ", ".join(f"{name} {count}" for name, count in counts.most_common(8))
        print(f"{path}: {sum(counts.values())} instructions: {most}", flush=True)
    if failed:
        print(f"sass: {failed} entries could not be disassembled", file=sys.stderr)


if __name__ == "__main__":
    main()

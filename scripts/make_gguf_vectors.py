#!/usr/bin/env python3
"""Write blocks of every GGUF type that Indrik reads, with their values as dequantised by the `gguf` package.

usage: make_gguf_vectors.py [FOLDER]    (default: crates/tensor/tests/fixtures/gguf_vectors)

Needs the packages gguf and numpy:
    pip install --target /tmp/gguf-package gguf==0.19.0 numpy
    PYTHONPATH=/tmp/gguf-package scripts/make_gguf_vectors.py

One file per type, little-endian: the number of blocks (u32), the blocks, their values (f32). All numbers are finite;
non-finite scales are tested without vectors. The seed is fixed, so that a second run writes the same bytes.
"""
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

SEED = 3
# f16 bit patterns: zeros, smallest and largest subnormals, smallest normal, ordinary values, largest; both signs.
EDGES = [0x0000, 0x0001, 0x0003, 0x03FF, 0x0400, 0x1234, 0x2E66, 0x3C00, 0x7BFF]
EDGES += [bits | 0x8000 for bits in EDGES]
# Byte offsets of the f16 values in a block.
HALVES = {
    T.Q8_0: [0], T.Q4_0: [0], T.Q5_0: [0], T.Q4_1: [0, 2], T.Q5_1: [0, 2],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}
# Types that the package can quantise to, for blocks like those of a real file.
QUANTISED = [T.Q8_0, T.Q4_0, T.Q5_0, T.Q4_1, T.Q5_1]


def with_halves(blocks, offsets, halves):
    """`blocks` with the f16 bits of `halves` inserted, one column per offset."""
    for column, offset in enumerate(offsets):
        blocks[:, offset : offset + 2] = halves[:, column, None].astype("<u2").view(np.uint8)
    return blocks


def edge_blocks(kind, rng):
    """Every edge value at every scale offset, with random, all-zero and all-one codes."""
    offsets, size = HALVES[kind], GGML_QUANT_SIZES[kind][1]
    halves = [[edge] * len(offsets) for edge in EDGES]
    if len(offsets) == 2:
        # Scale and minimum of different magnitude and either sign.
        halves += [[a, b] for a in (0x0000, 0x0001, 0x2E66, 0x7BFF) for b in (0x8000, 0x83FF, 0xAE66, 0xFBFF)]
    halves = np.array(halves, np.uint16)
    blocks = rng.integers(0, 256, (len(halves), size), dtype=np.uint8)
    blocks[::3, :] = 0x00
    blocks[1::3, :] = 0xFF
    return with_halves(blocks, offsets, halves)


def random_blocks(kind, count, rng):
    """Random codes, and scales of typical magnitude for weights."""
    offsets, size = HALVES[kind], GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    halves = (rng.standard_normal((count, len(offsets))) * 1e-3).astype(np.float16).view(np.uint16)
    return with_halves(blocks, offsets, halves)


def blocks_of(kind, rng):
    values, size = GGML_QUANT_SIZES[kind]
    if values == 1:
        floats = np.concatenate([rng.standard_normal(200) * 10.0 ** rng.integers(-9, 5, 200), [0.0, -0.0]])
        if kind == T.F16:
            raw = np.concatenate([floats.astype("<f2").view("<u2"), np.array(EDGES, "<u2")])
        elif kind == T.BF16:
            raw = quantize(floats.astype("<f4"), kind).view("<u2")
            raw = np.concatenate([raw, np.array([0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F, 0xFF7F], "<u2")])
        else:
            raw = np.concatenate([floats.astype("<f4").view("<u4"), np.array([1, 0x80000001, 0x7F7FFFFF], "<u4")])
        return raw.view(np.uint8).reshape(-1, size)
    parts = [edge_blocks(kind, rng), random_blocks(kind, 8 if values == 256 else 24, rng)]
    if kind in QUANTISED:
        weights = rng.standard_normal((24, values)).astype(np.float32) * 0.02
        parts.append(quantize(weights, kind).reshape(-1, size))
    return np.concatenate(parts)


def main():
    here = Path(__file__).resolve().parent.parent
    default = here / "crates/tensor/tests/fixtures/gguf_vectors"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    for kind in [T.F32, T.F16, T.BF16, *HALVES]:
        rng = np.random.default_rng([SEED, kind.value])
        blocks = np.ascontiguousarray(blocks_of(kind, rng))
        with np.errstate(over="raise", invalid="raise"):
            values = np.ascontiguousarray(dequantize(blocks, kind), dtype="<f4").ravel()
        assert np.isfinite(values).all(), kind.name
        assert values.size == blocks.shape[0] * GGML_QUANT_SIZES[kind][0], kind.name
        path = folder / f"{kind.name.lower()}.bin"
        path.write_bytes(struct.pack("<I", blocks.shape[0]) + blocks.tobytes() + values.tobytes())
        print(f"{path.name}: {blocks.shape[0]} blocks, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()

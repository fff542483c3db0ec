#!/usr/bin/env python3
"""Make the fixtures of embedding models: tiny random models with the vectors that transformers computes in float64, ids of
WordPiece and of the special tokens around texts, and the vectors of the published all-MiniLM-L6-v2.

usage: make_embedding_fixtures.py [MINILM]     MINILM is a folder of all-MiniLM-L6-v2; without it, its files are kept
needs: pip install torch transformers tokenizers safetensors gguf numpy sentence-transformers

Weights and texts depend on seeds only.
"""
import sys
from pathlib import Path

import torch
import transformers

from embedding_fixtures import minilm, models, tokens

ROOT = Path(__file__).resolve().parent.parent


def main():
    torch.set_num_threads(1)  # the order of sums must not depend on the machine's cores
    transformers.logging.set_verbosity_error()
    models.make(ROOT / "crates/model/tests/embeddings")
    tokens.make(ROOT / "crates/text/tests/fixtures/embedding_texts.json")
    if len(sys.argv) > 1:
        minilm.make(Path(sys.argv[1]), ROOT / "crates/indrik/tests/data")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Make the fixtures of crates/model: tiny random models of every family with the logits computed by transformers.

usage: make_logit_fixtures.py [OUT]     OUT is crates/model/tests/fixtures by default; its README.md is kept
needs: pip install torch transformers safetensors gguf tokenizers numpy   (versions: see reference.json; no download)

Weights depend on the seed only. Logits are sums in f32, for the newer families in f64; their last bits may differ on another
processor.
"""
import shutil
import sys
from pathlib import Path

import torch
import transformers

from logit_fixtures import gemma3, gemma3_vision, gemma4, gemma4_vision, llama_qwen, mistral
from logit_fixtures.shared import folder_size


def main(out):
    torch.set_num_threads(1)  # the order of sums must not depend on the machine's cores
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    for family in (gemma3, gemma3_vision, llama_qwen, gemma4, gemma4_vision, mistral):
        for name in family.NAMES:
            shutil.rmtree(out / name, ignore_errors=True)
        family.make(out)
    print(f"{out}: {folder_size(out)} bytes")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else here / "crates/model/tests/fixtures")

#!/usr/bin/env python3
"""Make the Hugging Face fixtures of crates/checkpoint: tiny random Gemma 3 folders saved by transformers, and
configs of all families as transformers resolves them.

usage: make_hf_fixtures.py [OUT]        OUT is crates/checkpoint/tests/fixtures/hf by default
needs: pip install torch transformers safetensors   (written with transformers 5.22; any device, no download)
"""
import json
import pathlib
import shutil
import sys

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GenerationConfig,
)

import llama_qwen_configs

# Small dimensions, different wherever a mix-up must show. Six layers: the last is global.
TEXT = dict(
    vocab_size=96, hidden_size=16, intermediate_size=24, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, head_dim=6, query_pre_attn_scalar=10, sliding_window=8, max_position_embeddings=64,
)
VISION = dict(
    hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14,
)
LINEAR = {"rope_type": "linear", "factor": 8.0}

# The language-model keys of the published models' configs, without those they omit.
PUBLISHED = {
    "270m": dict(
        model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], vocab_size=262144, hidden_size=640,
        intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
        max_position_embeddings=32768, sliding_window=512, query_pre_attn_scalar=256, rope_local_base_freq=10000.0,
        rope_theta=1000000.0, rope_scaling=None, eos_token_id=[1, 106], bos_token_id=2, pad_token_id=0,
        _sliding_window_pattern=6,
        layer_types=["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(18)],
    ),
    "1b": dict(
        model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], vocab_size=262144, hidden_size=1152,
        intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4, num_key_value_heads=1, head_dim=256,
        max_position_embeddings=32768, sliding_window=512, sliding_window_pattern=6, rope_local_base_freq=10000,
        rope_theta=1000000, rope_scaling=None, eos_token_id=[1, 106], bos_token_id=2, pad_token_id=0,
    ),
    "4b": dict(
        model_type="gemma3", eos_token_id=[1, 106],
        text_config=dict(
            model_type="gemma3_text", hidden_size=2560, intermediate_size=10240, num_hidden_layers=34,
            sliding_window=1024, rope_scaling=LINEAR,
        ),
    ),
    "12b": dict(
        model_type="gemma3", eos_token_id=[1, 106],
        text_config=dict(
            model_type="gemma3_text", hidden_size=3840, intermediate_size=15360, num_hidden_layers=48,
            num_attention_heads=16, num_key_value_heads=8, sliding_window=1024, rope_scaling=LINEAR,
        ),
    ),
    "27b": dict(
        model_type="gemma3", eos_token_id=[1, 106],
        text_config=dict(
            model_type="gemma3_text", hidden_size=5376, intermediate_size=21504, num_hidden_layers=62,
            num_attention_heads=32, num_key_value_heads=16, head_dim=128, query_pre_attn_scalar=168,
            sliding_window=1024, rope_scaling=LINEAR,
        ),
    ),
}

# Every spelling of a config that the reader must accept.
SPELLINGS = {
    "nothing said": dict(model_type="gemma3_text"),
    "nothing said, multimodal": dict(model_type="gemma3"),
    "pattern": dict(model_type="gemma3_text", num_hidden_layers=7, sliding_window_pattern=3),
    "pattern of one": dict(model_type="gemma3_text", num_hidden_layers=3, sliding_window_pattern=1),
    "layer types beat the pattern": dict(
        model_type="gemma3_text", num_hidden_layers=2, sliding_window_pattern=1,
        layer_types=["full_attention", "sliding_attention"],
    ),
    "older rope": dict(
        model_type="gemma3_text", rope_theta=5e5, rope_local_base_freq=2e4, rope_scaling={"rope_type": "linear", "factor": 4},
    ),
    "newer rope": dict(
        model_type="gemma3_text",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
    ),
    "newer rope in part": dict(
        model_type="gemma3_text", rope_theta=7e5, rope_local_base_freq=6e4,
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": None},
    ),
    "both ropes": dict(
        model_type="gemma3_text", rope_scaling=LINEAR,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 3e5}},
    ),
    "ends outside and inside": dict(
        model_type="gemma3", eos_token_id=[1, 106], text_config=dict(model_type="gemma3_text", eos_token_id=1),
    ),
    "untied": dict(model_type="gemma3_text", tie_word_embeddings=False),
}


def resolved(raw):
    """A config as transformers resolves it, in the keys of the reader."""
    kind = Gemma3Config if raw["model_type"] == "gemma3" else Gemma3TextConfig
    config = kind.from_dict(json.loads(json.dumps(raw)))
    text = config.get_text_config()
    full, sliding = (text.rope_parameters[name] for name in ("full_attention", "sliding_attention"))
    ends = GenerationConfig.from_model_config(config).eos_token_id
    return dict(
        hidden=text.hidden_size, intermediate=text.intermediate_size, layers=text.num_hidden_layers,
        heads=text.num_attention_heads, kv_heads=text.num_key_value_heads, head_dim=text.head_dim,
        query_pre_attn_scalar=float(text.query_pre_attn_scalar), sliding_window=text.sliding_window,
        layer_types=["global" if kind == "full_attention" else "sliding" for kind in text.layer_types],
        rope_theta_global=float(full["rope_theta"]), rope_theta_local=float(sliding["rope_theta"]),
        rope_scaling={"linear": {"factor": float(full["factor"])}} if full["rope_type"] == "linear" else "none",
        rms_norm_eps=text.rms_norm_eps, vocab=text.vocab_size, max_positions=text.max_position_embeddings,
        tie_embeddings=config.tie_word_embeddings, bos=text.bos_token_id,
        eos=ends if isinstance(ends, list) else [ends], pad=text.pad_token_id,
    )


def main(out):
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    torch.manual_seed(1)
    text = Gemma3ForCausalLM(Gemma3TextConfig(**TEXT)).to(torch.bfloat16)
    text.save_pretrained(out / "text")
    text.save_pretrained(out / "sharded", max_shard_size="12KB")
    both = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=dict(TEXT, rope_scaling=LINEAR), vision_config=VISION, mm_tokens_per_image=1)
    ).to(torch.bfloat16)
    both.save_pretrained(out / "multimodal_older")
    both.save_pretrained(out / "multimodal_newer", save_original_format=False)
    raw = {**PUBLISHED, **SPELLINGS}
    for folder in ("text", "multimodal_older"):
        raw[f"folder {folder}"] = json.loads((out / folder / "config.json").read_text())
    cases = [dict(name=name, config=config, resolved=resolved(config)) for name, config in raw.items()]
    (out / "configs.json").write_text(json.dumps(cases, indent=1) + "\n")
    others = ",\n".join(json.dumps(case) for case in llama_qwen_configs.cases())
    (out / "llama_qwen_configs.json").write_text(f"[\n{others}\n]\n")
    for file in out.rglob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes 600
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size} bytes")


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent.parent
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "crates/checkpoint/tests/fixtures/hf")

"""Configs of Llama, Qwen 2 and Qwen 3 as transformers resolves them; part of make_hf_fixtures.py."""
import json

from transformers import GenerationConfig, LlamaConfig, Qwen2Config, Qwen3Config

CLASSES = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
BANDS = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192, rope_type="llama3")


def sizes(hidden, intermediate, layers, heads, kv_heads, vocab, positions, **more):
    return dict(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocab, max_position_embeddings=positions, hidden_act="silu", **more,
    )


def llama3(factor, tied, *dimensions, **more):
    return dict(
        model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False, mlp_bias=False, rms_norm_eps=1e-5,
        rope_theta=500000.0, rope_scaling=dict(BANDS, factor=factor), tie_word_embeddings=tied, bos_token_id=128000,
        eos_token_id=[128001, 128008, 128009], **sizes(*dimensions, 128256, 131072), **more,
    )


def smollm2(theta, *dimensions):
    return dict(
        model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False, rms_norm_eps=1e-5, rope_theta=theta,
        rope_scaling=None, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        **sizes(*dimensions, 49152, 8192),
    )


def qwen25(window, window_layers, tied, *dimensions):
    return dict(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], rms_norm_eps=1e-6, rope_theta=1000000.0,
        sliding_window=window, max_window_layers=window_layers, use_sliding_window=False, tie_word_embeddings=tied,
        bos_token_id=151643, eos_token_id=151645, **sizes(*dimensions, 32768),
    )


def qwen3(tied, *dimensions):
    return dict(
        model_type="qwen3", architectures=["Qwen3ForCausalLM"], attention_bias=False, rms_norm_eps=1e-6, head_dim=128,
        rope_theta=1000000, rope_scaling=None, sliding_window=None, max_window_layers=dimensions[2],
        use_sliding_window=False, tie_word_embeddings=tied, bos_token_id=151643, eos_token_id=151645,
        **sizes(*dimensions, 151936, 40960),
    )


# The keys of the published models' configs, without those they omit.
PUBLISHED = {
    "Llama 3.2 1B": llama3(32.0, True, 2048, 8192, 16, 32, 8, head_dim=64),
    "Llama 3.2 3B": llama3(32.0, True, 3072, 8192, 28, 24, 8, head_dim=128),
    "Llama 3.1 8B": llama3(8.0, False, 4096, 14336, 32, 32, 8),
    "SmolLM2 135M": smollm2(100000, 576, 1536, 30, 9, 3),
    "SmolLM2 360M": smollm2(100000, 960, 2560, 32, 15, 5),
    "SmolLM2 1.7B": smollm2(130000, 2048, 8192, 24, 32, 32),
    "Qwen2.5 0.5B": qwen25(32768, 21, True, 896, 4864, 24, 14, 2, 151936),
    "Qwen2.5 1.5B": qwen25(32768, 21, True, 1536, 8960, 28, 12, 2, 151936),
    "Qwen2.5 7B": qwen25(131072, 28, False, 3584, 18944, 28, 28, 4, 152064),
    "Qwen2.5-Coder 1.5B": qwen25(131072, 28, True, 1536, 8960, 28, 12, 2, 151936),
    "Qwen2.5-Coder 7B": qwen25(131072, 28, False, 3584, 18944, 28, 28, 4, 152064),
    "Qwen3 0.6B": qwen3(True, 1024, 3072, 28, 16, 8),
    "Qwen3 4B": qwen3(True, 2560, 9728, 36, 32, 8),
    "Qwen3 8B": qwen3(False, 4096, 12288, 36, 32, 8),
}

# Every spelling of a config that the reader must accept.
SPELLINGS = {
    "nothing said, llama": dict(model_type="llama"),
    "nothing said, qwen2": dict(model_type="qwen2"),
    "nothing said, qwen3": dict(model_type="qwen3"),
    "as many kv heads as heads": dict(model_type="llama", num_attention_heads=16, num_key_value_heads=None, head_dim=None),
    "older linear rope": dict(model_type="llama", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0}),
    "newer rope": dict(model_type="qwen2", rope_parameters={"rope_type": "default", "rope_theta": 3e5}),
    "newer linear rope": dict(
        model_type="qwen3", rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 3e5},
    ),
    "newer llama 3 rope": dict(
        model_type="llama", max_position_embeddings=131072,
        rope_parameters=dict(BANDS, factor=16.0, rope_theta=4e5),
    ),
    "newer rope in part": dict(model_type="llama", rope_theta=7e5, rope_parameters={"rope_type": "default"}),
    "several ends": dict(model_type="qwen2", eos_token_id=[151645, 151643]),
    "tied": dict(model_type="llama", tie_word_embeddings=True),
}


def scaling(rope):
    factor = float(rope.get("factor") or 1)
    match rope["rope_type"]:
        case "default":
            return "none"
        case "linear":
            return {"linear": {"factor": factor}}
        case "llama3":
            low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
            original = rope["original_max_position_embeddings"]
            return {"llama3": {"factor": factor, "low": low, "high": high, "original": original}}


def resolved(raw):
    """A config as transformers resolves it, in the keys of the reader."""
    config = CLASSES[raw["model_type"]].from_dict(json.loads(json.dumps(raw)))
    rope, heads = config.rope_parameters, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    ends = GenerationConfig.from_model_config(config).eos_token_id
    assert set(getattr(config, "layer_types", ["full_attention"])) == {"full_attention"}
    return dict(
        architecture=raw["model_type"], embedding_factor=1.0, hidden=config.hidden_size,
        intermediate=config.intermediate_size, layers=config.num_hidden_layers, heads=heads,
        kv_heads=config.num_key_value_heads, head_dim=head_dim, query_pre_attn_scalar=float(head_dim),
        sliding_window=None, layer_types=["global"] * config.num_hidden_layers,
        rope_theta_global=float(rope["rope_theta"]), rope_scaling=scaling(rope), rms_norm_eps=config.rms_norm_eps,
        vocab=config.vocab_size, max_positions=config.max_position_embeddings,
        tie_embeddings=config.tie_word_embeddings, bos=config.bos_token_id,
        eos=ends if isinstance(ends, list) else [] if ends is None else [ends], pad=config.pad_token_id,
    )


def cases():
    raw = {**PUBLISHED, **SPELLINGS}
    return [dict(name=name, config=config, resolved=resolved(config)) for name, config in raw.items()]

"""Llama, Qwen 2, Qwen 3 and Qwen 3 MoE: folders, and GGUF files with byte-level vocabularies.

They differ little: Llama has RoPE scaling, and llama.cpp stores its query and key rows in another order; Qwen 2 has
biases; Qwen 3 normalises queries and keys; Qwen 3 MoE has experts, whose tensors llama.cpp stacks.
"""
import json
import math
from dataclasses import dataclass

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from .bytelevel import LLAMA3, QWEN2, SMOLLM, TEXT, Vocabulary
from .shared import (
    LONG_PROMPT, PROMPT, finish, gguf_name, greedy_text, logits_of, random_prompt, randomize, save_folder, store_matrix,
    text_positions, write_reference,
)

GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
}
FILE_TYPES = {Type.F16: 1, Type.Q4_0: 2, Type.Q4_1: 3, Type.Q8_0: 7}
LINEAR = dict(rope_type="linear", factor=4.0)
# Of 32 frequencies the first few are kept, the last are divided by the factor, and some are interpolated, all within the
# prompt length.
BANDS = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64,
)


@dataclass
class Fixture:
    family: str
    seed: int
    config: dict
    theta: float
    scaling: dict | None = None
    vocabulary: Vocabulary | None = None
    prompt: int = PROMPT
    # RoPE in separate keys, as in all published configs; otherwise as transformers writes it now.
    older: bool = True
    gguf: Type | None = None
    # Gate and up of experts in one tensor, as transformers holds them; otherwise in two.
    fused: bool = False


def dims(heads, kv_heads, head_dim, hidden, intermediate, layers, vocab, tied, **more):
    """The arguments of a config. Without `head_dim` it is hidden ÷ heads."""
    return dict(
        num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=hidden, intermediate_size=intermediate,
        num_hidden_layers=layers, vocab_size=vocab, tie_word_embeddings=tied, max_position_embeddings=512,
        **({"head_dim": head_dim} if head_dim else {}), **more,
    )


def experts(count, per_token, intermediate, renormalize):
    return dict(
        num_experts=count, num_experts_per_tok=per_token, moe_intermediate_size=intermediate, norm_topk_prob=renormalize,
    )


# Published Qwen 2 and 3 configs have an unused window. This one would change the logits if it were used.
WINDOW = dict(use_sliding_window=False, sliding_window=8, max_window_layers=0)
SMOL, QWEN, THREE = len(SMOLLM.tokens), len(QWEN2.tokens), len(LLAMA3.tokens)
LLAMA_GGUF = dims(4, 2, 64, 64, 96, 2, SMOL, True, rms_norm_eps=1e-5)
FIXTURES = {
    "llama_tied": Fixture(
        "llama", 3, dims(3, 1, 64, 72, 52, 2, SMOL, True, rms_norm_eps=1e-5), 1e5, vocabulary=SMOLLM,
    ),
    "llama_llama3": Fixture(
        "llama", 1, dims(2, 1, 64, 80, 44, 2, 64, False, rms_norm_eps=1e-5), 5e5, BANDS, prompt=LONG_PROMPT,
    ),
    "llama_linear": Fixture("llama", 1, dims(2, 2, 64, 64, 36, 1, 96, False), 1e4, LINEAR, older=False),
    "llama_gguf_f16": Fixture(
        "llama", 3, dims(2, 1, None, 128, 64, 1, SMOL, True), 1e4, vocabulary=SMOLLM, gguf=Type.F16,
    ),
    "llama_gguf_q8_0": Fixture("llama", 41, LLAMA_GGUF, 1e5, vocabulary=SMOLLM, gguf=Type.Q8_0),
    "llama_gguf_q4_0": Fixture("llama", 41, LLAMA_GGUF, 1e5, vocabulary=SMOLLM, gguf=Type.Q4_0),
    "llama_gguf_q4_1": Fixture("llama", 41, LLAMA_GGUF, 1e5, vocabulary=SMOLLM, gguf=Type.Q4_1),
    "llama_gguf_llama3": Fixture(
        "llama", 3, dims(2, 1, 64, 64, 64, 2, THREE, False, rms_norm_eps=1e-5), 5e5, BANDS, LLAMA3, gguf=Type.Q8_0,
    ),
    "qwen2_tied": Fixture("qwen2", 2, dims(2, 1, None, 128, 56, 2, QWEN, True, **WINDOW), 1e6, vocabulary=QWEN2),
    "qwen2_untied": Fixture("qwen2", 1, dims(3, 1, None, 192, 40, 1, 64, False, **WINDOW), 1e6),
    "qwen2_gguf_f16": Fixture(
        "qwen2", 5, dims(2, 1, None, 128, 32, 1, QWEN, True), 1e6, vocabulary=QWEN2, gguf=Type.F16,
    ),
    "qwen2_gguf_q8_0": Fixture(
        "qwen2", 1, dims(2, 1, None, 128, 64, 2, QWEN, False), 1e6, vocabulary=QWEN2, gguf=Type.Q8_0,
    ),
    "qwen3": Fixture("qwen3", 1, dims(2, 1, 128, 72, 50, 2, 133, True, **WINDOW), 1e6, older=False),
    "qwen3_gguf_q8_0": Fixture(
        "qwen3", 4, dims(3, 1, 64, 64, 96, 2, QWEN, True), 1e6, vocabulary=QWEN2, gguf=Type.Q8_0,
    ),
    "qwen3moe": Fixture("qwen3moe", 1, dims(2, 1, 64, 64, 96, 2, 133, True, **experts(6, 2, 32, True)), 1e6, older=False),
    "qwen3moe_fused": Fixture(
        "qwen3moe", 2, dims(2, 1, 64, 64, 96, 1, 133, False, **experts(5, 3, 16, False)), 1e6, older=False, fused=True,
    ),
    "qwen3moe_gguf_q8_0": Fixture(
        "qwen3moe", 4, dims(3, 1, 64, 64, 96, 2, QWEN, True, **experts(8, 2, 64, True)), 1e6, vocabulary=QWEN2, gguf=Type.Q8_0,
    ),
    "qwen3moe_gguf_f16": Fixture(
        "qwen3moe", 5, dims(2, 1, 64, 96, 32, 1, QWEN, True, **experts(4, 2, 48, True)), 1e6, vocabulary=QWEN2, gguf=Type.F16,
        fused=True,
    ),
}
NAMES = list(FIXTURES)


def spread(name):
    """Mean and standard deviation of a tensor's values, so that no part of the model is negligible: norms are far from 1, scores not
    flat, sublayers outweigh the embeddings (else a tied head repeats its input), logits are of order 1 to 10."""
    if name == "model.norm.weight":
        return 3.0, 0.7
    if "norm" in name:
        return 1.4, 0.4
    if name.endswith(".bias"):
        return 0.0, 0.7
    if name.endswith("mlp.gate.weight"):
        return 0.0, 0.3  # experts differ in weight, and none always wins
    return 0.0, 0.07 if "embed_tokens" in name or "lm_head" in name else 0.12


def random_model(fixture, dtype):
    rope = dict(fixture.scaling or {"rope_type": "default"}, rope_theta=fixture.theta)
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3moe": "Qwen3Moe"}[fixture.family]
    config = getattr(transformers, kind + "Config")(**fixture.config, rope_parameters=rope)
    config._attn_implementation = "eager"
    model = getattr(transformers, kind + "ForCausalLM")(config).to(dtype).eval()
    rng = np.random.default_rng(fixture.seed)
    randomize(model, rng, spread)
    if fixture.vocabulary:
        # Greedy text must consist of letters, not of byte or stop tokens.
        others = sorted(set(range(config.vocab_size)) - set(fixture.vocabulary.plain))
        model.get_output_embeddings().weight.data[others] *= 0.5
    model.tie_weights()
    return model, rng


def published_spelling(path, fixture):
    """A config as published: RoPE in separate keys, a window marked as unused, no layer types."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if fixture.scaling is None else rope
    config.pop("layer_types", None)
    config |= {key: value for key, value in fixture.config.items() if key in WINDOW}
    path.write_text(json.dumps(config, indent=2) + "\n")


def prompt(fixture, rng):
    vocabulary = fixture.vocabulary
    if vocabulary is None:
        return *random_prompt(rng, 1, fixture.config["vocab_size"], fixture.prompt), {}
    tokenizer = vocabulary.tokenizer()
    ids = tokenizer.encode(TEXT).ids
    assert tokenizer.decode(ids) == TEXT
    return ids, text_positions(ids), dict(text=TEXT)


def reference(folder, note, fixture, model, rng):
    ids, positions, more = prompt(fixture, rng)
    if fixture.vocabulary:
        more |= greedy_text(model, fixture.vocabulary.tokens, ids, fixture.vocabulary.plain)
        note += "; greedy follows ids"
    write_reference(folder, note, 1.0, ids, logits_of(model, ids), positions, **more)


def hugging_face(folder, fixture):
    model, rng = random_model(fixture, torch.bfloat16)
    save_folder(model, folder)
    if fixture.fused:
        stack_experts(folder / "model.safetensors", model)
    if fixture.older:
        published_spelling(folder / "config.json", fixture)
    if fixture.vocabulary:
        fixture.vocabulary.save(folder)
    model = type(model).from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").float().eval()
    reference(folder, "bf16 weights cast to f32, computed in f32", fixture, model, rng)


def stack_experts(path, model):
    """Store experts as the model holds them, in tensors of three dimensions; save_pretrained divides them."""
    tensors = {name: tensor for name, tensor in safetensors.torch.load_file(path).items() if ".experts." not in name}
    tensors |= {name: value.data.contiguous() for name, value in model.named_parameters() if ".experts." in name}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def pairs_together(rows, heads):
    """Row order of Llama in llama.cpp's files: rows i and i + half of a head, which RoPE rotates together, are adjacent."""
    half = rows // heads // 2
    head = np.arange(half).repeat(2) + np.tile([0, half], half)
    return (np.arange(heads)[:, None] * 2 * half + head).reshape(-1)


def divisors(fixture, dim):
    """Frequency divisors in llama.cpp's Llama 3 files: 1 for short wavelengths, the factor for long ones."""
    waves = 2 * math.pi * fixture.theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    turns = fixture.scaling["original_max_position_embeddings"] / waves
    low, high = fixture.scaling["low_freq_factor"], fixture.scaling["high_freq_factor"]
    short = np.clip((turns - low) / (high - low), 0, 1)
    assert {0.0, 1.0} < set(short), "all three bands"
    return (1 / ((1 - short) / fixture.scaling["factor"] + short)).astype(np.float32)


def gguf_metadata(writer, name, fixture, config):
    said = fixture.config
    writer.add_name(f"tiny random {fixture.family}, {name}")
    writer.add_block_count(said["num_hidden_layers"])
    writer.add_context_length(said["max_position_embeddings"])
    writer.add_embedding_length(said["hidden_size"])
    writer.add_feed_forward_length(said["intermediate_size"])
    writer.add_head_count(said["num_attention_heads"])
    writer.add_head_count_kv(said["num_key_value_heads"])
    writer.add_rope_freq_base(fixture.theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "head_dim" in said:
        writer.add_key_length(said["head_dim"])
        writer.add_value_length(said["head_dim"])
    if fixture.family == "qwen3moe":
        writer.add_expert_count(said["num_experts"])
        writer.add_expert_used_count(said["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(said["moe_intermediate_size"])
    writer.add_file_type(FILE_TYPES[fixture.gguf])
    if fixture.family == "llama":
        writer.add_vocab_size(said["vocab_size"])
        writer.add_rope_dimension_count(config.head_dim)
    fixture.vocabulary.write(writer)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def store_experts(writer, name, values, fixture):
    """Write a projection of all experts and return it as a reader would see it."""
    layer = f"blk.{name.split('.')[2]}"
    if name.endswith("down_proj"):
        parts = {"ffn_down_exps": values}
    elif fixture.fused:
        parts = {"ffn_gate_up_exps": values}
    else:
        gate, up = np.split(values, 2, axis=1)
        parts = {"ffn_gate_exps": gate, "ffn_up_exps": up}
    stored = [
        store_matrix(writer, f"{layer}.{part}.weight", np.ascontiguousarray(of), fixture.gguf) for part, of in parts.items()
    ]
    return np.concatenate(stored, axis=1)


def gguf_file(folder, fixture):
    folder.mkdir()
    model, rng = random_model(fixture, torch.float32)
    config, llama = model.config, fixture.family == "llama"
    writer = gguf.GGUFWriter(folder / "model.gguf", fixture.family)
    gguf_metadata(writer, folder.name, fixture, config)
    if fixture.scaling:
        writer.add_tensor("rope_freqs.weight", divisors(fixture, config.head_dim))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values = parameter.data.numpy()
        if ".experts." in name:
            parameter.data = torch.from_numpy(store_experts(writer, name, values, fixture))
            continue
        stored_name = gguf_name(name, GGUF_NAMES)
        if values.ndim == 1 or name.endswith("mlp.gate.weight"):
            writer.add_tensor(stored_name, values)
            continue
        turned = heads.get(name.split(".")[-2]) if llama else None
        order = pairs_together(len(values), turned) if turned else np.arange(len(values))
        read = np.empty_like(values)
        read[order] = store_matrix(writer, stored_name, np.ascontiguousarray(values[order]), fixture.gguf)
        parameter.data = torch.from_numpy(read)
    model.tie_weights()
    finish(writer)
    reference(folder, "dequantised values, computed in f32", fixture, model, rng)


def make(out):
    for name, fixture in FIXTURES.items():
        (gguf_file if fixture.gguf is not None else hugging_face)(out / name, fixture)

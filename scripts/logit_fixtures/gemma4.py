"""Gemma 4: folders of all kinds, with and without the layers of other modalities, and GGUF files with a BPE vocabulary.

Kinds: dense; E2B and E4B, with an input per layer and layers that share keys and values; experts; unified (12B).
"""
import json
import math
from dataclasses import dataclass

import gguf
import numpy as np
import safetensors.torch
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from .gguf_forward import check
from .shared import (
    PROMPT, finish, greedy_text, logits_of, random_prompt, randomize, save_folder, store_matrix, text_positions,
    write_reference,
)

BOS = 2
SLIDING, GLOBAL = "sliding_attention", "full_attention"
VISION = dict(
    hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=4,
    patch_size=2, position_embedding_size=4,
)
AUDIO = dict(
    hidden_size=8, num_hidden_layers=1, num_attention_heads=2, subsampling_conv_channels=[4, 2], output_proj_dims=8,
)
UNIFIED_VISION = dict(patch_size=2, pooling_kernel_size=1, mm_embed_dim=8, mm_posemb_size=4, output_proj_dims=8)
UNIFIED_AUDIO = dict(audio_embed_dim=8)
FILE_TYPES = {Type.F16: 1, Type.Q8_0: 7}
GGUF_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_feedforward_layernorm": "post_ffw_norm", "layer_scalar": "layer_output_scale",
    "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "embed_tokens": "token_embd", "norm": "output_norm", "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm",
}

# The vocabulary of the GGUF files, in the order of the real one: specials, bytes, merges by rank, characters. As in
# llama.cpp's files, the tokens that a chat parser reads are user-defined.
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|think|>", "<|image|>", "<|audio|>"]
VISIBLE = [
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
]
MERGES = [
    ("▁", "t"), ("h", "e"), ("i", "n"), ("a", "n"), ("r", "e"), ("▁", "a"), ("o", "n"), ("e", "r"), ("▁t", "he"),
    ("▁", "w"), ("o", "u"), ("s", "t"), ("▁", "s"), ("in", "g"), ("an", "d"), ("▁", "in"), ("o", "r"), ("▁", "c"),
    ("a", "t"), ("▁c", "at"), ("u", "s"), ("us", "er"), ("\n", "\n"),
]
CHARACTERS = ["▁", "\n", *"etaoinshrdlcumwfgypbvkjxqz", ".", ",", "?", "!", "é"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def vocabulary(more_control=()):
    """Tokens, and the range of those that are neither special nor bytes."""
    tokens = [*CONTROL, *more_control, *VISIBLE, *BYTES, *(left + right for left, right in MERGES), *CHARACTERS]
    return tokens, range(tokens.index("<0xFF>") + 1, len(tokens))


TOKENS, PLAIN = vocabulary()
TEXT = "the cat and user Z were\n\n  on stone, singing… née?"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n{{ message['content'] }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def dims(heads, kv_heads, head_dims, hidden, intermediate, layers, vocab=133, **more):
    """The arguments of a text config: `kv_heads` and `head_dims` of sliding and of global layers, and `layers` as letters."""
    return dict(
        dict(
            num_attention_heads=heads, num_key_value_heads=kv_heads[0], head_dim=head_dims[0],
            num_global_key_value_heads=kv_heads[1], global_head_dim=head_dims[1], hidden_size=hidden,
            intermediate_size=intermediate, num_hidden_layers=len(layers), vocab_size=vocab, sliding_window=8,
            layer_types=[GLOBAL if letter == "G" else SLIDING for letter in layers], final_logit_softcapping=30.0,
            max_position_embeddings=512, hidden_size_per_layer_input=0,
        ),
        **more,
    )


def per_layer_inputs(width, shared, vocab=133):
    """The additions of E2B and E4B."""
    return dict(
        hidden_size_per_layer_input=width, num_kv_shared_layers=shared, use_double_wide_mlp=True,
        vocab_size_per_layer_input=vocab,
    )


def experts(count, per_token, intermediate):
    return dict(
        enable_moe_block=True, num_experts=count, top_k_experts=per_token, moe_intermediate_size=intermediate,
        attention_k_eq_v=True,
    )


@dataclass
class Fixture:
    seed: int
    config: dict
    # Of the class: "text", "multimodal" or "unified".
    kind: str = "text"
    # Configs of the other modalities.
    towers: dict | None = None
    # Sizes of global layers in two keys, as in published configs; otherwise as transformers writes them now.
    published: bool = True
    gguf: Type | None = None
    # Gate and up of experts in one tensor, as in llama.cpp's files; otherwise in two.
    fused: bool = True


KEYS_ARE_VALUES = dict(attention_k_eq_v=True)
# Of seeds, those where keys and values in int8 choose the same experts and change logits little.
SHARED = 3  # layers that read the keys and values of the last layer of their kind before them
FIXTURES = {
    "gemma4_text": Fixture(1, dims(4, (2, 1), (32, 64), 96, 64, "SGSG", **KEYS_ARE_VALUES), published=False),
    "gemma4_head512": Fixture(2, dims(2, (1, 1), (256, 512), 64, 32, "SG", **KEYS_ARE_VALUES)),
    "gemma4_dense": Fixture(
        3, dims(2, (1, None), (32, 64), 64, 96, "SSG"), "multimodal", dict(vision_config=VISION, audio_config=AUDIO),
    ),
    "gemma4_ple": Fixture(
        3, dims(2, (1, None), (32, 64), 64, 32, "SGSGSSG", **per_layer_inputs(64, SHARED)), "multimodal",
        dict(vision_config=VISION),
    ),
    "gemma4_moe": Fixture(
        7, dims(4, (2, 1), (32, 64), 64, 32, "SG", use_bidirectional_attention="vision", **experts(8, 2, 32)),
        "multimodal", dict(vision_config=VISION),
    ),
    "gemma4_unified": Fixture(
        6, dims(4, (2, 1), (32, 64), 64, 64, "SSG", **KEYS_ARE_VALUES), "unified",
        dict(vision_config=UNIFIED_VISION, audio_config=UNIFIED_AUDIO),
    ),
    "gemma4_gguf_f16": Fixture(
        64, dims(4, (2, 1), (32, 64), 96, 64, "SG", len(TOKENS), **KEYS_ARE_VALUES), gguf=Type.F16,
    ),
    "gemma4_ple_gguf_q8_0": Fixture(
        3, dims(2, (1, None), (32, 64), 64, 32, "SGSGSSG", len(TOKENS), **per_layer_inputs(64, SHARED, len(TOKENS))),
        gguf=Type.Q8_0,
    ),
    "gemma4_moe_gguf_f16": Fixture(
        12, dims(4, (2, 1), (32, 64), 64, 32, "SG", len(TOKENS), **experts(4, 2, 32)), gguf=Type.F16,
    ),
    "gemma4_moe_gguf_q8_0": Fixture(
        12, dims(2, (2, 1), (32, 64), 64, 64, "SG", len(TOKENS), **experts(8, 2, 64)), gguf=Type.Q8_0, fused=False,
    ),
}
NAMES = list(FIXTURES)


def spread(name):
    """Mean and standard deviation of a tensor's values, so that no part of the model is negligible: norms and layer scalars
    are far from 1, scores not flat, the router undecided, and the soft cap bends the largest logits."""
    if name.endswith(("language_model.norm.weight", "model.norm.weight")):
        return 12.0, 3.0
    if name.endswith("layer_scalar"):
        return 0.8, 0.15
    if "q_norm" in name or "k_norm" in name:
        return 1.0, 0.35  # and divided by a power of the width
    if "norm" in name:
        return 1.2, 0.35
    if name.endswith("router.proj.weight"):
        return 0.0, 1.2
    if name.endswith((".scale", ".per_expert_scale")):
        return 1.0, 0.4
    return 0.0, 0.07 if "embed_tokens.weight" in name else 0.12


def random_model(fixture, dtype):
    text, towers = dict(fixture.config), fixture.towers or {}
    if fixture.kind == "text":
        config = transformers.Gemma4TextConfig(**text)
        kind = transformers.Gemma4ForCausalLM
    elif fixture.kind == "multimodal":
        config = transformers.Gemma4Config(text_config=text, **towers)
        kind = transformers.Gemma4ForConditionalGeneration
    else:
        del text["hidden_size_per_layer_input"]
        config = transformers.Gemma4UnifiedConfig(text_config=text, **towers)
        kind = transformers.Gemma4UnifiedForConditionalGeneration
    model = kind._from_config(config, attn_implementation="eager", experts_implementation="eager").to(dtype).eval()
    rng = np.random.default_rng(fixture.seed)
    randomize(model, rng, spread)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.data *= 1.15 / len(parameter) ** 0.25  # scores vary as much whatever the width
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("layer_scalar"):
            mean, deviation = spread(name)
            buffer.fill_(mean + deviation * rng.standard_normal())
    if fixture.gguf is not None:
        # Greedy text must consist of letters, not of byte or stop tokens.
        model.get_input_embeddings().weight.data[: PLAIN.start] *= 0.5
    model.tie_weights()
    return model, rng


def exact(model, factor):
    """The model in f64. The embedding factor is set explicitly: whether that of a bf16 checkpoint stays rounded after a
    cast depends on the version."""
    model = model.double()
    model.get_input_embeddings().embed_scale = torch.tensor(factor, dtype=torch.float64)
    return model


def published_spelling(path):
    config = json.loads(path.read_text())
    text = config.get("text_config", config)
    sizes = list(text.pop("per_layer_config").values())
    assert all(size == sizes[0] for size in sizes)
    text["global_head_dim"] = sizes[0]["head_dim"]
    text["num_global_key_value_heads"] = sizes[0].get("num_key_value_heads")
    ordered = lambda value: {k: ordered(v) for k, v in sorted(value.items())} if isinstance(value, dict) else value
    path.write_text(json.dumps(ordered(config), indent=2) + "\n")


def unused_tensors(fixture, rng):
    """Keys and values of layers that use those of another, which published files contain."""
    config = fixture.config
    for layer in range(config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0), config["num_hidden_layers"]):
        width = config["head_dim" if config["layer_types"][layer] == SLIDING else "global_head_dim"]
        shape = (config["num_key_value_heads"] * width, config["hidden_size"])
        for name, shape in {"k_norm": (width,), "k_proj": shape, "v_proj": shape}.items():
            mean, deviation = spread(name)
            yield f"layers.{layer}.self_attn.{name}.weight", mean + deviation * rng.standard_normal(shape)


def hugging_face(folder, fixture):
    model, rng = random_model(fixture, torch.bfloat16)
    save_folder(model, folder)
    if fixture.published:
        published_spelling(folder / "config.json")
    prefix = "model." if fixture.kind == "text" else "model.language_model."
    unused = {prefix + name: torch.from_numpy(values).to(torch.bfloat16) for name, values in unused_tensors(fixture, rng)}
    if unused:
        path = folder / "model.safetensors"
        safetensors.torch.save_file(safetensors.torch.load_file(path) | unused, path, metadata={"format": "pt"})
        path.chmod(0o644)
    how = dict(attn_implementation="eager", experts_implementation="eager")
    model = type(model).from_pretrained(folder, dtype=torch.bfloat16, **how).eval()
    factor = torch.tensor(math.sqrt(fixture.config["hidden_size"])).to(torch.bfloat16).item()
    ids, positions = random_prompt(rng, BOS, fixture.config["vocab_size"], PROMPT)
    note = "bf16 weights, computed in f64; embed_scale is the root of hidden, rounded to bf16"
    write_reference(folder, note, factor, ids, logits_of(exact(model, factor), ids), positions)


def tokenizer():
    vocab = {token: number for number, token in enumerate(TOKENS)}
    assert len(vocab) == len(TOKENS)
    model = tokenizers.models.BPE(vocab, MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    result = tokenizers.Tokenizer(model)
    result.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    whole = lambda texts, special: [tokenizers.AddedToken(t, normalized=False, special=special) for t in texts]
    result.add_special_tokens(whole(CONTROL, True))
    result.add_tokens(whole(VISIBLE, False))
    return result


def write_vocabulary(writer, more_control, template):
    tokens, plain = vocabulary(more_control)
    kinds = gguf.TokenType
    types = [kinds.CONTROL] * (len(CONTROL) + len(more_control)) + [kinds.USER_DEFINED] * len(VISIBLE) + [kinds.BYTE] * 256
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types(types + [kinds.NORMAL] * len(plain))
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(tokens.index("<turn|>"))
    writer.add_unk_token_id(tokens.index("<unk>"))
    writer.add_pad_token_id(tokens.index("<pad>"))
    writer.add_chat_template(template)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)


def gguf_metadata(writer, name, said, kind, more_control=(), template=TEMPLATE):
    """Of the text config `said` in a file whose matrices are mostly of the type `kind`."""
    sliding = [kind == SLIDING for kind in said["layer_types"]]
    shared = said.get("num_kv_shared_layers", 0)
    wide, own = said["intermediate_size"], said["num_hidden_layers"] - shared
    global_kv_heads = said["num_global_key_value_heads"]
    writer.add_name(f"tiny random Gemma 4, {name}")
    writer.add_block_count(said["num_hidden_layers"])
    writer.add_context_length(said["max_position_embeddings"])
    writer.add_embedding_length(said["hidden_size"])
    double = said.get("use_double_wide_mlp")
    writer.add_feed_forward_length([wide] * own + [2 * wide] * shared if double else wide)
    writer.add_head_count(said["num_attention_heads"])
    kv_heads = said["num_key_value_heads"]
    writer.add_head_count_kv(
        kv_heads if global_kv_heads is None else [kv_heads if near else global_kv_heads for near in sliding]
    )
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    writer.add_layer_norm_rms_eps(1e-6)
    if "num_experts" in said:
        writer.add_expert_count(said["num_experts"])
        writer.add_expert_used_count(said["top_k_experts"])
        writer.add_expert_feed_forward_length(said["moe_intermediate_size"])
    writer.add_key_length(said["global_head_dim"])
    writer.add_value_length(said["global_head_dim"])
    writer.add_final_logit_softcapping(said["final_logit_softcapping"])
    writer.add_sliding_window(said["sliding_window"])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(said["hidden_size_per_layer_input"])
    writer.add_sliding_window_pattern(sliding)
    writer.add_key_length_swa(said["head_dim"])
    writer.add_value_length_swa(said["head_dim"])
    writer.add_rope_dimension_count(said["global_head_dim"])
    writer.add_rope_dimension_count_swa(said["head_dim"])
    writer.add_file_type(FILE_TYPES[kind])
    write_vocabulary(writer, more_control, template)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def gguf_name(name):
    """The tensor's name in llama.cpp's files."""
    parts = name.removeprefix("model.").removeprefix("language_model.").removesuffix(".weight").split(".")
    layer = f"blk.{parts[1]}." if parts[0] == "layers" else ""
    stored = layer + GGUF_NAMES[".".join(parts[2:] if layer else parts)]
    return stored if stored.endswith(".scale") else stored + ".weight"


def rope_divisors(said):
    """Frequency divisors of global layers: a quarter of the pairs is rotated."""
    pairs = said["global_head_dim"] // 2
    return np.array([1.0] * (pairs // 4) + [1e30] * (pairs - pairs // 4), np.float32)


def store(writer, name, values, fixture):
    """Write a tensor and return it as a reader would see it."""
    stored_name = gguf_name(name)
    if values.ndim == 1 or name.endswith("router.proj.weight"):
        writer.add_tensor(stored_name, values)
        return values
    if stored_name.endswith("ffn_gate_up_exps.weight") and not fixture.fused:
        names = [stored_name.replace("gate_up", part) for part in ("gate", "up")]
        halves = zip(names, np.split(values, 2, axis=1))
        stored = [store_matrix(writer, part, np.ascontiguousarray(half), fixture.gguf) for part, half in halves]
        return np.concatenate(stored, axis=1)
    # As files mix types, one matrix has another.
    kind = Type.BF16 if stored_name == "per_layer_model_proj.weight" else fixture.gguf
    return store_matrix(writer, stored_name, values, kind)


def gguf_file(folder, fixture):
    folder.mkdir()
    model, rng = random_model(fixture, torch.float32)
    path, said = folder / "model.gguf", fixture.config
    writer = gguf.GGUFWriter(path, "gemma4")
    gguf_metadata(writer, folder.name, said, fixture.gguf)
    writer.add_tensor("rope_freqs.weight", rope_divisors(said))
    for name, values in unused_tensors(fixture, rng):
        store(writer, name, values.astype(np.float32), fixture)
    scalars = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
    for name, tensor in [*model.named_parameters(), *scalars]:
        tensor.data = torch.from_numpy(store(writer, name, tensor.data.numpy(), fixture))
    model.tie_weights()
    finish(writer)

    factor = float(np.sqrt(np.float32(said["hidden_size"])))
    model = exact(model, factor)
    ids = [BOS, *tokenizer().encode(TEXT, add_special_tokens=False).ids]
    note = "dequantised values, computed in f64; embed_scale is the root of hidden in f32; greedy follows ids"
    more = greedy_text(model, TOKENS, ids, PLAIN)
    continued = ids + more["greedy"]
    check(path, continued, logits_of(model, continued))
    write_reference(folder, note, factor, ids, logits_of(model, ids), text_positions(ids), text=TEXT, **more)


def make(out):
    for name, fixture in FIXTURES.items():
        (gguf_file if fixture.gguf is not None else hugging_face)(out / name, fixture)

"""Gemma 3: folders, text-only and multimodal in both namings, and GGUF files with a SentencePiece vocabulary."""
import json
import math

import gguf
import numpy as np
import tokenizers
import torch
from gguf import GGMLQuantizationType as Type
from transformers import Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig

from .shared import (
    LONG_PROMPT, PROMPT, finish, gguf_name, greedy_text, logits_of, random_prompt, randomize, save_folder, store_matrix,
    text_positions, write_reference,
)

BOS = 2
LINEAR = {"rope_type": "linear", "factor": 8.0}
VISION = dict(
    hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=14, patch_size=7,
)
SLIDING, GLOBAL = "sliding_attention", "full_attention"


def text(heads, kv_heads, head_dim, hidden, intermediate, layers, window, vocab, **more):
    """The arguments of a text config."""
    return dict(
        dict(
            num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, hidden_size=hidden,
            intermediate_size=intermediate, num_hidden_layers=layers, sliding_window=window, vocab_size=vocab,
            query_pre_attn_scalar=head_dim, max_position_embeddings=512,
        ),
        **more,
    )


# With a hidden size of 64 the embedding factor is 8 in every format; otherwise bf16 rounds it.
TEXT_ONLY = {
    "default_pattern": text(2, 1, 64, 64, 36, 6, 8, 199),
    "head256": text(1, 1, 256, 72, 50, 2, 8, 133, layer_types=[SLIDING, GLOBAL]),
    "untied_long": text(
        2, 1, 64, 96, 136, 2, 32, 64, layer_types=[SLIDING, GLOBAL], tie_word_embeddings=False,
    ),
}
MULTIMODAL = {
    "multimodal_newer": text(
        4, 1, 128, 64, 36, 2, 64, 96, layer_types=[GLOBAL, SLIDING], query_pre_attn_scalar=168, rope_scaling=LINEAR,
    ),
    "multimodal_older": text(4, 2, 64, 80, 48, 2, 16, 120, sliding_window_pattern=2, rope_scaling=LINEAR),
}
# llama.cpp divides scores by the square root of head_dim, and so must the reference.
GGUF = text(2, 1, 64, 96, 64, 2, 8, 320, sliding_window_pattern=2, rope_scaling=LINEAR)
GGUF_SEED = 49  # greedy text varies in all three files and has no near-tie
GGUF_TYPES = {"gguf_f16": Type.F16, "gguf_q8_0": Type.Q8_0, "gguf_q4_0": Type.Q4_0}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}

# The vocabulary of the GGUF files, in the order of the real one: specials, bytes, merges by rank, characters.
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
USER_DEFINED = ["\n", "\n\n", "  ", "<b>"]
MERGES = [
    ("▁", "t"), ("h", "e"), ("i", "n"), ("a", "n"), ("r", "e"), ("▁", "a"), ("o", "n"), ("e", "r"), ("▁t", "he"),
    ("▁", "w"), ("o", "u"), ("s", "t"), ("▁", "s"), ("in", "g"), ("an", "d"), ("▁", "in"), ("o", "r"), ("▁", "c"),
    ("a", "t"), ("▁c", "at"), ("u", "s"), ("us", "er"),
]
CHARACTERS = ["▁", *"etaoinshrdlcumwfgypbvkjxqz", ".", ",", "?", "!", "é"]
TEXT = "the cat and user Z were\n\n  on stone, <b>singing… née?"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n{{ message['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def spread(name):
    """Mean and standard deviation of a tensor's values, so that no part of the model is negligible: scores are not flat, sublayers
    outweigh the embeddings (else a tied head repeats its input), logits are of order 1 to 10."""
    if "q_norm" in name or "k_norm" in name:
        return 0.5, 0.3
    if "post_attention_layernorm" in name or "post_feedforward_layernorm" in name:
        return 1.0, 0.3
    if name.endswith(("model.norm.weight", "language_model.norm.weight")):
        return 3.0, 0.7
    if "norm" in name:
        return 0.0, 0.25
    return 0.0, 0.07 if "embed_tokens" in name or "lm_head" in name else 0.12


def set_embed_scale(model, factor):
    """Set explicitly: whether the factor of a bf16 checkpoint stays rounded after a cast to f32 depends on the version."""
    model.get_input_embeddings().embed_scale = torch.tensor(factor, dtype=torch.float32)


def older_config(path):
    """A multimodal config as first published: RoPE in three keys, a sliding-window pattern, no layer types."""
    config = json.loads(path.read_text())
    inner = config["text_config"]
    rope = inner.pop("rope_parameters")
    inner.pop("layer_types")
    inner["sliding_window_pattern"] = inner.pop("_sliding_window_pattern")
    inner["rope_theta"] = rope[GLOBAL]["rope_theta"]
    inner["rope_local_base_freq"] = rope[SLIDING]["rope_theta"]
    inner["rope_scaling"] = {key: rope[GLOBAL][key] for key in ("rope_type", "factor")}
    path.write_text(json.dumps(config, indent=2) + "\n")


def hugging_face(folder, seed, config, multimodal, newer):
    rng = np.random.default_rng(seed)
    if multimodal:
        kind = Gemma3ForConditionalGeneration
        model = kind(Gemma3Config(text_config=config, vision_config=VISION, mm_tokens_per_image=1))
    else:
        kind = Gemma3ForCausalLM
        model = kind(Gemma3TextConfig(**config))
    model = model.to(torch.bfloat16)
    randomize(model, rng, spread)
    model.tie_weights()
    save_folder(model, folder, save_original_format=not newer)
    if multimodal and not newer:
        older_config(folder / "config.json")

    model = kind.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").float().eval()
    factor = torch.tensor(math.sqrt(config["hidden_size"])).to(torch.bfloat16).item()
    set_embed_scale(model, factor)
    length = LONG_PROMPT if folder.name == "untied_long" else PROMPT
    ids, positions = random_prompt(rng, BOS, config["vocab_size"], length)
    note = "bf16 weights cast to f32, computed in f32; embed_scale is the root of hidden, rounded to bf16"
    write_reference(folder, note, factor, ids, logits_of(model, ids), positions)


def vocabulary(more_control=()):
    """The tokens of the GGUF files with types and scores, and a tokenizer that agrees with them."""
    control = [*CONTROL, *more_control]
    kinds = gguf.TokenType
    merged = [left + right for left, right in MERGES]
    tokens = control + USER_DEFINED + [f"<0x{byte:02X}>" for byte in range(256)] + merged + CHARACTERS
    assert len(set(tokens)) == len(tokens) == GGUF["vocab_size"] + len(more_control)
    types = [kinds.CONTROL] * len(control) + [kinds.USER_DEFINED] * len(USER_DEFINED) + [kinds.BYTE] * 256
    scores = [-1000.0] * len(types[:-256]) + [0.0] * 256 + [-float(rank) for rank in range(len(merged + CHARACTERS))]
    types += [kinds.NORMAL] * len(merged + CHARACTERS)

    vocab = {token: number for number, token in enumerate(tokens)}
    model = tokenizers.models.BPE(vocab, MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    whole = lambda texts, special: [tokenizers.AddedToken(t, normalized=False, special=special) for t in texts]
    tokenizer.add_special_tokens(whole(control, True))
    tokenizer.add_tokens(whole(USER_DEFINED, False))
    return tokens, types, scores, tokenizer


def gguf_metadata(writer, name, tokens, types, scores, config=GGUF, template=TEMPLATE):
    writer.add_name(f"tiny random Gemma 3, {name}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_uint32("gemma3.attention.sliding_window_pattern", config["sliding_window_pattern"])
    writer.add_rope_freq_base(1e6)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(LINEAR["factor"])
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(tokens.index("<eos>"))
    writer.add_eot_token_id(tokens.index("<end_of_turn>"))
    writer.add_unk_token_id(tokens.index("<unk>"))
    writer.add_pad_token_id(tokens.index("<pad>"))
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(template)


def gguf_file(folder, seed, kind):
    folder.mkdir()
    tokens, types, scores, tokenizer = vocabulary()
    config = Gemma3TextConfig(**GGUF)
    config._attn_implementation = "eager"
    model = Gemma3ForCausalLM(config).float().eval()
    randomize(model, np.random.default_rng(seed), spread)
    # Greedy text must consist of letters, not of byte or stop tokens.
    model.get_input_embeddings().weight.data[: tokens.index("<0xFF>") + 1] *= 0.5
    model.tie_weights()
    writer = gguf.GGUFWriter(folder / "model.gguf", "gemma3")
    gguf_metadata(writer, folder.name, tokens, types, scores)
    for name, parameter in model.named_parameters():
        values = parameter.data.numpy()
        if values.ndim == 1:
            stored = np.float32(1) + values
            writer.add_tensor(gguf_name(name, GGUF_NAMES), stored)
            read = stored - np.float32(1)
            assert (np.float32(1) + read == stored).all()
        else:
            read = store_matrix(writer, gguf_name(name, GGUF_NAMES), values, kind)
        parameter.data = torch.from_numpy(read.astype(np.float32))
    finish(writer)

    factor = float(np.sqrt(np.float32(GGUF["hidden_size"])))
    set_embed_scale(model, factor)
    ids = [BOS, *tokenizer.encode(TEXT, add_special_tokens=False).ids]
    logits = logits_of(model, ids)
    note = "dequantised values, computed in f32; embed_scale is the root of hidden in f32; greedy follows ids"
    more = greedy_text(model, tokens, ids, range(tokens.index("<0xFF>") + 1, len(tokens)))
    write_reference(folder, note, factor, ids, logits, text_positions(ids), text=TEXT, **more)


NAMES = [*TEXT_ONLY, *MULTIMODAL, *GGUF_TYPES]


def make(out):
    for seed, (name, config) in enumerate({**TEXT_ONLY, **MULTIMODAL}.items(), 1):
        hugging_face(out / name, seed, dict(config), name in MULTIMODAL, name == "multimodal_newer")
    for name, kind in GGUF_TYPES.items():
        gguf_file(out / name, GGUF_SEED, kind)

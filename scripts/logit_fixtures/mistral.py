"""Mistral and Ministral 3: folders, text-only and multimodal, and GGUF files with a Tekken vocabulary.

Mistral is Llama. Ministral 3 adds YaRN, and queries are multiplied by a factor that grows with the position.
"""
import json
from dataclasses import dataclass

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from .bytelevel import TEKKEN, TEXT
from .gguf_forward import check
from .llama_qwen import FILE_TYPES, GGUF_NAMES, dims, pairs_together, spread
from .shared import (
    PROMPT, finish, gguf_name, greedy_text, logits_of, random_prompt, randomize, save_folder, store_matrix, text_positions,
    write_reference,
)

# With a width of 64, pairs 0 and 1 are kept, those from 9 on are divided by the factor, and those in between are interpolated.
# Positions from 16 on have another factor of queries, and from 32 on a third.
YARN = dict(
    rope_type="yarn", type="yarn", rope_theta=1e4, factor=16.0, original_max_position_embeddings=16, beta_fast=1.5,
    beta_slow=0.25, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
)
VISION = dict(
    model_type="pixtral", hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=14,
    patch_size=7,
)
LONGER_PROMPT = 44


@dataclass
class Fixture:
    # The name of the transformers class.
    kind: str
    seed: int
    config: dict
    gguf: Type | None = None


FIXTURES = {
    "mistral": Fixture(
        "Mistral", 1, dims(4, 2, 32, 96, 64, 2, 133, False, rms_norm_eps=1e-5, sliding_window=None),
    ),
    "ministral3": Fixture("Ministral3", 2, dims(2, 1, 64, 96, 64, 2, 133, False, rope_parameters=YARN)),
    "ministral3_multimodal": Fixture(
        "Mistral3", 3,
        dims(4, 2, 64, 64, 96, 2, 133, True, rope_parameters=dict(YARN, llama_4_scaling_beta=0.4), model_type="ministral3"),
    ),
    "ministral3_gguf_f16": Fixture(
        "Ministral3", 9, dims(4, 2, 64, 96, 64, 2, len(TEKKEN.tokens), True, rope_parameters=YARN), gguf=Type.F16,
    ),
    "ministral3_gguf_q8_0": Fixture(
        "Ministral3", 10, dims(2, 1, 64, 64, 96, 2, len(TEKKEN.tokens), False, rope_parameters=YARN), gguf=Type.Q8_0,
    ),
}
NAMES = list(FIXTURES)


def random_model(fixture, dtype):
    if fixture.kind == "Mistral3":
        config = transformers.Mistral3Config(
            text_config=fixture.config, vision_config=VISION, tie_word_embeddings=fixture.config["tie_word_embeddings"],
        )
        kind = transformers.Mistral3ForConditionalGeneration
    else:
        config = getattr(transformers, fixture.kind + "Config")(**fixture.config)
        kind = getattr(transformers, fixture.kind + "ForCausalLM")
    model = kind._from_config(config, attn_implementation="eager").to(dtype).eval()
    rng = np.random.default_rng(fixture.seed)
    randomize(model, rng, lambda name: spread(name.replace("language_model.", "")))
    if fixture.gguf is not None:
        # Greedy text must consist of letters, not of byte or stop tokens.
        others = sorted(set(range(config.vocab_size)) - set(TEKKEN.plain))
        model.get_output_embeddings().weight.data[others] *= 0.5
    model.tie_weights()
    return model, rng


def published_spelling(path):
    """RoPE in a key of its own, as in published Mistral configs."""
    config = json.loads(path.read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    path.write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")


def hugging_face(folder, fixture):
    model, rng = random_model(fixture, torch.bfloat16)
    save_folder(model, folder, save_original_format=True)
    if fixture.kind == "Mistral":
        published_spelling(folder / "config.json")
    model = type(model).from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").double().eval()
    length = PROMPT if fixture.kind == "Mistral" else LONGER_PROMPT
    ids, positions = random_prompt(rng, 1, fixture.config["vocab_size"], length)
    write_reference(folder, "bf16 weights, computed in f64", 1.0, ids, logits_of(model, ids), positions)


def gguf_metadata(writer, name, fixture):
    said, rope = fixture.config, fixture.config["rope_parameters"]
    writer.add_name(f"tiny random Ministral 3, {name}")
    writer.add_block_count(said["num_hidden_layers"])
    writer.add_context_length(said["max_position_embeddings"])
    writer.add_embedding_length(said["hidden_size"])
    writer.add_feed_forward_length(said["intermediate_size"])
    writer.add_head_count(said["num_attention_heads"])
    writer.add_head_count_kv(said["num_key_value_heads"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_key_length(said["head_dim"])
    writer.add_value_length(said["head_dim"])
    writer.add_file_type(FILE_TYPES[fixture.gguf])
    writer.add_vocab_size(said["vocab_size"])
    writer.add_rope_dimension_count(said["head_dim"])
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    TEKKEN.write(writer)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def gguf_file(folder, fixture):
    folder.mkdir()
    model, _ = random_model(fixture, torch.float32)
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "mistral3")
    gguf_metadata(writer, folder.name, fixture)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        values, stored_name = parameter.data.numpy(), gguf_name(name, GGUF_NAMES)
        if values.ndim == 1:
            writer.add_tensor(stored_name, values)
            continue
        turned = heads.get(name.split(".")[-2])
        order = pairs_together(len(values), turned) if turned else np.arange(len(values))
        read = np.empty_like(values)
        read[order] = store_matrix(writer, stored_name, np.ascontiguousarray(values[order]), fixture.gguf)
        parameter.data = torch.from_numpy(read)
    model.tie_weights()
    finish(writer)

    model = model.double()
    ids = TEKKEN.tokenizer().encode(TEXT).ids
    more = greedy_text(model, TEKKEN.tokens, ids, TEKKEN.plain)
    continued = ids + more["greedy"]
    check(path, continued, logits_of(model, continued))
    note = "dequantised values, computed in f64; greedy follows ids"
    write_reference(folder, note, 1.0, ids, logits_of(model, ids), text_positions(ids), text=TEXT, **more)


def make(out):
    for name, fixture in FIXTURES.items():
        (gguf_file if fixture.gguf is not None else hugging_face)(out / name, fixture)

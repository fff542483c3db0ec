"""Gemma 3 with images: folders in both namings, and a GGUF file with its image encoder (mmproj) beside it.

The reference has the pixels of two random images, what the encoder and the projector make of them, and logits of prompts with
images, also with a causal mask inside of images. An independent forward pass in f64 checks all of them.
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
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from . import gemma3, gguf_forward
from .gemma3 import BOS, GGUF_NAMES, GLOBAL, LINEAR, SLIDING, older_config, text
from .shared import describe, finish, randomize, save_folder, store_matrix

IMAGES = 2
VISION_NAMES = {
    "embeddings.patch_embedding": "patch_embd", "embeddings.position_embedding": "position_embd",
    "post_layernorm": "post_ln", "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
PROJECTOR_NAMES = {
    "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
    "multi_modal_projector.mm_soft_emb_norm.weight": "mm.soft_emb_norm.weight",
}
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}<start_of_image>{% else %}{{ item['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def tower(heads, head_dim, intermediate, layers, image, patch):
    return dict(
        hidden_size=heads * head_dim, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, image_size=image, patch_size=patch, vision_use_head=False,
    )


@dataclass
class Fixture:
    seed: int
    tower: dict
    # Soft tokens along a side.
    side: int
    text: dict
    # "older", "newer" or "gguf".
    kind: str
    # Tokens of the language model that mark images; the last is that of soft tokens.
    marks: tuple


MORE_CONTROL = ["<start_of_image>", "<end_of_image>"]
VOCAB = 64
GGUF_VOCAB = gemma3.GGUF["vocab_size"] + len(MORE_CONTROL)
# As in published towers, heads are 72 wide, and patches and the MLP do not fill blocks of 32.
FIXTURES = {
    "gemma3_vision_older": Fixture(
        101, tower(2, 72, 48, 1, 24, 6), 2,
        text(1, 1, 32, 64, 32, 2, 6, VOCAB, sliding_window_pattern=2, rope_scaling=LINEAR), "older", (60, 61, 62),
    ),
    # An image has more soft tokens than the window.
    "gemma3_vision_newer": Fixture(
        102, tower(1, 72, 48, 1, 24, 4), 3, text(2, 1, 32, 64, 32, 2, 5, VOCAB, layer_types=[SLIDING, GLOBAL]), "newer",
        (60, 61, 62),
    ),
    # llama.cpp's text files end with the tokens of the tokenizer, which soft tokens are not among.
    "gemma3_vision_gguf": Fixture(
        105, tower(2, 16, 48, 2, 16, 4), 2,
        text(1, 1, 32, 64, 32, 2, 6, GGUF_VOCAB, sliding_window_pattern=2, rope_scaling=LINEAR), "gguf",
        (6, 7, GGUF_VOCAB),
    ),
}
NAMES = list(FIXTURES)


def spread(name):
    """As for the language model: no part of the encoder is negligible."""
    if "vision_tower" not in name and "multi_modal_projector" not in name:
        return gemma3.spread(name)
    if name.endswith(".bias"):
        return 0.0, 0.2
    if "layer_norm" in name or "layernorm" in name:
        return 1.0, 0.25
    if "position_embedding" in name:
        return 0.0, 0.5
    return 0.0, 0.25 if "norm" in name else 0.12


def random_model(fixture, dtype):
    boi, eoi, soft = fixture.marks
    config = Gemma3Config(
        text_config=dict(fixture.text), vision_config=fixture.tower, mm_tokens_per_image=fixture.side**2,
        boi_token_index=boi, eoi_token_index=eoi, image_token_index=soft,
    )
    model = Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").to(dtype).eval()
    randomize(model, np.random.default_rng(fixture.seed), spread)
    model.tie_weights()
    return model


def random_patches(fixture, rng):
    """Pixels of images as rows of patches, each with the values of a channel after those of another, from -1 to 1."""
    size, patch = fixture.tower["image_size"], fixture.tower["patch_size"]
    shape = (IMAGES, (size // patch) ** 2, 3, patch**2)
    colours = rng.uniform(30, 225, shape[:3])[..., None]
    pixels = np.clip(np.rint(colours + rng.normal(0, 40, shape)), 0, 255)
    return ((pixels / 255 - 0.5) / 0.5).astype(np.float32).reshape(IMAGES, shape[1], -1)


def as_images(fixture, patches):
    """Rows of patches as `[image][channel][y][x]`."""
    size, patch = fixture.tower["image_size"], fixture.tower["patch_size"]
    side = size // patch
    grid = patches.reshape(IMAGES, side, side, 3, patch, patch).transpose(0, 3, 1, 4, 2, 5)
    return torch.from_numpy(grid.reshape(IMAGES, 3, size, size).astype(np.float64))


def prompts(fixture, rng):
    """Token ids by case, and the images of each. Other tokens are neither special nor bytes."""
    boi, eoi, soft = fixture.marks
    plain = (3, boi)
    if fixture.kind == "gguf":
        plain = (gemma3.vocabulary(MORE_CONTROL)[0].index("<0xFF>") + 1, GGUF_VOCAB)
    words = lambda count: rng.integers(*plain, count).tolist()
    image = [boi, *[soft] * fixture.side**2, eoi]
    long = fixture.text["sliding_window"] + 5
    return {
        "one": ([BOS, *image, *words(4)], [0]),
        "two": ([BOS, *words(1), *image, *words(2), *image, *words(3)], [0, 1]),
        "after_text": ([BOS, *words(long), *image, *words(long)], [1]),
    }


def kept_positions(fixture, ids):
    """The first and the last soft token of each image and their neighbours, some others, and the last position. Fewer where
    the vocabulary is large."""
    soft = np.array(ids) == fixture.marks[2]
    if fixture.kind == "gguf":
        return [int(np.flatnonzero(soft)[0]), int(np.flatnonzero(soft)[-1]), len(ids) - 1]
    edges = np.flatnonzero(soft[1:] != soft[:-1])
    return sorted({*(edges + 1).tolist(), *edges.tolist(), *np.flatnonzero(soft)[1::4].tolist(), len(ids) - 1})


def logits_of(model, ids, images, soft, bidirectional):
    ids = torch.tensor([ids])
    types = (ids == soft).int() if bidirectional else torch.zeros_like(ids)
    with torch.no_grad():
        return model(input_ids=ids, pixel_values=images, token_type_ids=types, use_cache=False).logits[0].numpy()


def gguf_name(name):
    """The tensor's name in llama.cpp's files."""
    name = name.removeprefix("model.")
    if name in PROJECTOR_NAMES:
        return PROJECTOR_NAMES[name]
    stem, last = name.rsplit(".", 1)
    tower, parts = stem.split(".", 1)
    parts = parts.removeprefix("vision_model.").removeprefix("encoder.")
    layer, prefix = "", "v." if tower == "vision_tower" else ""
    if parts.startswith("layers."):
        _, number, parts = parts.split(".", 2)
        layer = f"blk.{number}."
    names = VISION_NAMES if prefix else {key.removeprefix("model."): value for key, value in GGUF_NAMES.items()}
    return f"{prefix}{layer}{names[parts]}.{last}"


def gguf_tensors(model):
    """Parameters with the names and values of llama.cpp's files: norms of the language model and of soft tokens with 1 added."""
    for name, parameter in model.named_parameters():
        stored = gguf_name(name)
        plus_one = stored.endswith("norm.weight")
        yield name, stored, parameter.data.numpy() + plus_one


def text_keys(fixture):
    said = fixture.text
    pattern = said.get("sliding_window_pattern", 2)
    return {
        "attention.head_count": said["num_attention_heads"], "attention.head_count_kv": said["num_key_value_heads"],
        "attention.key_length": said["head_dim"], "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": said["sliding_window"], "embedding_length": said["hidden_size"],
        "block_count": said["num_hidden_layers"], "attention.sliding_window_pattern": pattern, "rope.freq_base": 1e6,
        "rope.scaling.factor": LINEAR["factor"] if "rope_scaling" in said else 1,
    }


def vision_keys(fixture):
    said = fixture.tower
    return {
        "clip.vision.image_size": said["image_size"], "clip.vision.patch_size": said["patch_size"],
        "clip.vision.embedding_length": said["hidden_size"],
        "clip.vision.feed_forward_length": said["intermediate_size"],
        "clip.vision.block_count": said["num_hidden_layers"],
        "clip.vision.attention.head_count": said["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projection_dim": fixture.text["hidden_size"],
        "clip.vision.projector.scale_factor": said["image_size"] // said["patch_size"] // fixture.side,
    }


def off(own, reference):
    return np.abs(own - reference).max() / np.abs(reference).max()


def write_reference(folder, fixture, model, note, keys, tensors):
    """Everything that a test compares with, checked with a forward pass of our own from llama.cpp's keys and tensors."""
    rng = np.random.default_rng(fixture.seed + 1000)
    patches = random_patches(fixture, rng)
    images = as_images(fixture, patches)
    model = model.double()
    factor = float(model.get_input_embeddings().embed_scale)
    assert factor == math.sqrt(fixture.text["hidden_size"]), "exact in every format"
    with torch.no_grad():
        encoded = model.model.vision_tower(pixel_values=images).last_hidden_state
        soft = model.model.multi_modal_projector(encoded).numpy()
    own = [gguf_forward.siglip(keys, tensors, rows.astype(np.float64)) for rows in patches]
    worst = max(off(np.stack([pair[0] for pair in own]), encoded.numpy()), off(np.stack([pair[1] for pair in own]), soft))
    own_soft = [pair[1] for pair in own]
    cases, kept, kept_causal = [], [], []
    for name, (ids, chosen) in prompts(fixture, rng).items():
        is_soft = np.array(ids) == fixture.marks[2]
        starts = is_soft & ~np.concatenate([[False], is_soft[:-1]])
        blocks = np.where(is_soft, np.cumsum(starts), -1)
        rows = np.concatenate([own_soft[image] for image in chosen])
        positions = kept_positions(fixture, ids)
        both = []
        for bidirectional in (True, False):
            logits = logits_of(model, ids, images[chosen], fixture.marks[2], bidirectional)
            check = gguf_forward.gemma3(keys, tensors, np.array(ids), is_soft, rows, blocks if bidirectional else None)
            worst = max(worst, off(check, logits))
            both.append(logits)
        causal = [int(np.flatnonzero(starts)[-1]), len(ids) - 1]
        change = np.abs(both[0] - both[1])[causal].max()
        describe(f"{folder.name}, {name}, {change:.2f} from a causal mask", both[0])
        assert change > 0.9, "pick another seed"
        kept.append(both[0][positions])
        kept_causal.append(both[1][causal])
        cases.append(dict(name=name, ids=ids, images=chosen, positions=positions, causal_positions=causal))
    print(f"  own forward pass in f64: {worst:.1e} of the largest value")
    assert worst < 3e-6
    for name, values in dict(
        pixels=patches, encoded=encoded.numpy()[0], soft_tokens=soft, logits=np.concatenate(kept),
        causal_logits=np.concatenate(kept_causal),
    ).items():
        values = np.ascontiguousarray(values, dtype="<f4")
        assert np.isfinite(values).all()
        (folder / f"{name}.bin").write_bytes(values.tobytes())
    reference = dict(
        note=note, transformers=transformers.__version__, torch=torch.__version__.split("+")[0], embed_scale=factor,
        start_of_image=fixture.marks[0], end_of_image=fixture.marks[1], soft_token=fixture.marks[2],
        vocab=fixture.text["vocab_size"], images=IMAGES, patches=patches.shape[1], patch_values=patches.shape[2],
        hidden=encoded.shape[2], soft_tokens=soft.shape[1], text_hidden=soft.shape[2],
        grids=[[math.isqrt(patches.shape[1])] * 2] * IMAGES,
    )
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in reference.items()]
    lines.append(' "cases": [\n' + ",\n".join("  " + json.dumps(case) for case in cases) + "\n ]")
    (folder / "reference.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def processor_config(fixture):
    size = fixture.tower["image_size"]
    return dict(
        do_convert_rgb=None, do_normalize=True, do_pan_and_scan=None, do_rescale=True, do_resize=True,
        image_mean=[0.5] * 3, image_processor_type="Gemma3ImageProcessor", image_seq_length=fixture.side**2,
        image_std=[0.5] * 3, resample=2, rescale_factor=1 / 255, size=dict(height=size, width=size),
    )


def hugging_face(folder, fixture):
    model = random_model(fixture, torch.bfloat16)
    older = fixture.kind == "older"
    save_folder(model, folder, save_original_format=older)
    processor = processor_config(fixture)
    if older:
        older_config(folder / "config.json")
        # As published: transformers reads this name, but does not write it any more.
        path = folder / "model.safetensors"
        stored = safetensors.torch.load_file(path)
        stored = {name.replace("vision_tower.", "vision_tower.vision_model."): values for name, values in stored.items()}
        safetensors.torch.save_file(stored, path, metadata={"format": "pt"})
        path.chmod(0o644)
        name = "preprocessor_config.json"
    else:
        name, processor = "processor_config.json", dict(image_processor=processor, processor_class="Gemma3Processor")
    (folder / name).write_text(json.dumps(processor, indent=2) + "\n")
    model = type(model).from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    tensors = {stored: values for _, stored, values in gguf_tensors(model)}
    note = "bf16 weights, computed in f64"
    write_reference(folder, fixture, model, note, text_keys(fixture) | vision_keys(fixture), tensors)


def mmproj_metadata(writer, folder, fixture):
    writer.add_type("mmproj")
    writer.add_name(f"tiny random Gemma 3, image encoder of {folder.name}")
    writer.add_file_type(1)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    for key, value in vision_keys(fixture).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)


def gguf_files(folder, fixture):
    folder.mkdir()
    model = random_model(fixture, torch.float32)
    tokens, types, scores, _ = gemma3.vocabulary(MORE_CONTROL)
    assert [tokens[mark] for mark in fixture.marks[:2]] == MORE_CONTROL
    language = gguf.GGUFWriter(folder / "model.gguf", "gemma3")
    gemma3.gguf_metadata(language, folder.name, tokens, types, scores, fixture.text, TEMPLATE)
    encoder = gguf.GGUFWriter(folder / "mmproj-model-f16.gguf", "clip")
    mmproj_metadata(encoder, folder, fixture)
    parameters = dict(model.named_parameters())
    for name, stored, values in list(gguf_tensors(model)):
        writer = encoder if stored.startswith(("v.", "mm.")) else language
        # As in published files: patches and positions are f32, and so are all vectors.
        if values.ndim == 1 or "_embd.weight" in stored and writer is encoder:
            writer.add_tensor(stored, values)
        else:
            values = store_matrix(writer, stored, values, Type.F16 if writer is encoder else Type.Q8_0)
        parameters[name].data = torch.from_numpy(values - np.float32(stored.endswith("norm.weight")))
    model.tie_weights()
    finish(language)
    finish(encoder)
    _, keys, tensors = gguf_forward.read(folder / "model.gguf")
    _, vision, encoder = gguf_forward.read(folder / "mmproj-model-f16.gguf")
    vision = {name if name.startswith("clip.") else f"clip.{name}": value for name, value in vision.items()}
    note = "dequantised values, computed in f64"
    write_reference(folder, fixture, model, note, vision | keys, tensors | encoder)


def make(out):
    for name, fixture in FIXTURES.items():
        (gguf_files if fixture.kind == "gguf" else hugging_face)(out / name, fixture)

"""Gemma 4 with images: folders with an image encoder (also one with clipping ranges) and of the 12B, and GGUF files with
their image encoders (mmproj) beside them.

The reference has the pixels of two random images of different shapes, what the encoder and the projector make of them, and
logits of prompts with images, also with wrong masks. An independent forward pass in f64 checks all of them.
"""
import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from transformers.masking_utils import create_causal_mask
from transformers.models.gemma4.modeling_gemma4 import create_masks_for_vision_model, get_block_sequence_ids_for_mask

from . import gemma4, gguf_forward
from .gemma4 import BOS, KEYS_ARE_VALUES, SLIDING, dims, per_layer_inputs, published_spelling, rope_divisors
from .shared import describe, finish, save_folder, store_matrix

MORE_CONTROL = ["<|image>", "<image|>"]
VOCAB = 64
TOKENS, PLAIN = gemma4.vocabulary(MORE_CONTROL)
POOLED = 3
MAX_SOFT_TOKENS = 8
# Columns and rows of the images' soft tokens.
GRIDS = [(2, 3), (4, 1)]
FOLDER_MARKS = (60, 61, 62)
GGUF_MARKS = tuple(TOKENS.index(token) for token in (*MORE_CONTROL, "<|image|>"))
# A matrix of a layer in Hugging Face files and in GGUF files.
MATRICES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
NORMS = {
    "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm", "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}
OUTSIDE = {
    "vision_tower.patch_embedder.input_proj.weight": "v.patch_embd.weight",
    "vision_tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
    "vision_tower.std_bias": "v.std_bias", "vision_tower.std_scale": "v.std_scale",
    "embed_vision.embedding_projection.weight": "mm.input_projection.weight",
    "embed_vision.multimodal_embedder.embedding_projection.weight": "mm.input_projection.weight",
    "embed_vision.patch_dense.weight": "v.patch_embd.weight", "embed_vision.patch_dense.bias": "v.patch_embd.bias",
    "embed_vision.pos_embedding": "v.position_embd.weight",
    **{
        f"embed_vision.{norm}.{part}": f"v.patch_norm.{number}.{part}"
        for number, norm in enumerate(("patch_ln1", "patch_ln2", "pos_norm"), 1) for part in ("weight", "bias")
    },
}
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
# Matrices that are multiplied by the same rows; their input ranges differ in the first layer only.
SAME_INPUT = [("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for item in message['content'] %}"
    "{% if item['type'] == 'image' %}<|image|>{% else %}{{ item['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def tower(heads, head_dim, intermediate, layers, patch, positions, **more):
    return dict(
        hidden_size=heads * head_dim, head_dim=head_dim, num_attention_heads=heads, num_key_value_heads=heads,
        intermediate_size=intermediate, num_hidden_layers=layers, patch_size=patch, pooling_kernel_size=POOLED,
        position_embedding_size=positions, **more,
    )


def embedder(hidden, patch):
    return dict(
        patch_size=patch, pooling_kernel_size=POOLED, mm_embed_dim=hidden, mm_posemb_size=12, output_proj_dims=hidden,
    )


@dataclass
class Fixture(gemma4.Fixture):
    vision: dict = field(default_factory=dict)

    def __post_init__(self):
        boi, eoi, soft = self.marks
        self.towers = dict(
            vision_config=self.vision, audio_config=None, boi_token_id=boi, eoi_token_id=eoi, image_token_id=soft,
        )

    @property
    def marks(self):
        """Tokens of the language model that mark images; the last is that of soft tokens."""
        return FOLDER_MARKS if self.gguf is None else GGUF_MARKS

    @property
    def unified(self):
        return self.kind == "unified"

    @property
    def pooled(self):
        """Patches along a side of a soft token."""
        return 1 if self.unified else POOLED

    @property
    def patch_size(self):
        return self.vision["patch_size"] * (POOLED if self.unified else 1)

    @property
    def channels_first(self):
        return self.gguf is not None

    @property
    def causal(self):
        """Whether soft tokens see only what comes before them, in all layers."""
        return self.config.get("use_bidirectional_attention") != "vision"


def text(layers, vocab, window, **more):
    return dims(1, (1, None), (32, 64), 64, 32, layers, vocab, sliding_window=window, **more)


WHOLE = dict(use_bidirectional_attention="vision")
FIXTURES = {
    # An image has more soft tokens than the window.
    "gemma4_vision_tower": Fixture(
        201, text("SG", VOCAB, 4, **WHOLE, **KEYS_ARE_VALUES), "multimodal",
        vision=tower(2, 72, 24, 1, 2, MAX_SOFT_TOKENS * POOLED, standardize=True),
    ),
    "gemma4_vision_clipped": Fixture(
        202, text("SGSG", VOCAB, 5, **per_layer_inputs(16, 2, VOCAB) | dict(use_double_wide_mlp=False)), "multimodal",
        vision=tower(1, 64, 48, 2, 4, 32, use_clipped_linears=True),
    ),
    "gemma4_vision_unified": Fixture(203, text("SSG", VOCAB, 5, **WHOLE), "unified", vision=embedder(72, 2)),
    "gemma4_vision_gguf": Fixture(
        204, text("SG", len(TOKENS), 5, **WHOLE), "multimodal", gguf=Type.Q8_0,
        vision=tower(2, 24, 40, 2, 4, 32, standardize=True, use_clipped_linears=True),
    ),
    "gemma4_vision_unified_gguf": Fixture(
        206, text("SG", len(TOKENS), 4, **WHOLE), "unified", gguf=Type.Q8_0, vision=embedder(72, 2),
    ),
}
NAMES = list(FIXTURES)


def spread(name):
    """As for the language model: no part of the encoder is negligible."""
    if name.endswith("std_bias"):
        return 0.0, 4.0
    if name.endswith((".bias", "pos_embedding", "position_embedding_table")):
        return 0.0, 0.4
    if "norm" in name or "patch_ln" in name or name.endswith("std_scale"):
        return 1.0, 0.3
    return 0.0, 0.3 if "input_proj" in name else 0.12


def of_vision(name):
    return any(part in name for part in ("vision_tower.", "embed_vision."))


def random_model(fixture, dtype):
    model, _ = gemma4.random_model(fixture, dtype)
    rng = np.random.default_rng(fixture.seed + 500)
    tensors = [*model.named_parameters(), *(pair for pair in model.named_buffers() if "std_" in pair[0])]
    for name, tensor in sorted((pair for pair in tensors if of_vision(pair[0])), key=lambda pair: pair[0]):
        mean, deviation = spread(name)
        values = mean + deviation * rng.standard_normal(tuple(tensor.shape))
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            values *= 1.15 / len(values) ** 0.25  # scores vary as much whatever the width
        tensor.data.copy_(torch.from_numpy(values))
    if fixture.vision.get("use_clipped_linears"):
        set_ranges(fixture, model, rng)
    return model


def set_ranges(fixture, model, rng):
    """Clip a part of the inputs and outputs of each matrix, as they are for random images without clipping."""
    seen, hooks = {}, []
    matrices = {
        f"{layer}.{name}": module.get_submodule(name)
        for layer, module in enumerate(model.model.vision_tower.encoder.layers) for name in MATRICES
    }
    for name, module in matrices.items():
        note = lambda _, inputs, output, name=name: seen.setdefault(name, []).append((inputs[0], output))
        hooks.append(module.linear.register_forward_hook(note))
    dtype = model.dtype
    model.float()
    for patches, grid in zip(random_patches(fixture, rng), GRIDS):
        encode(fixture, model, patches, grid[0] * POOLED)
    model.to(dtype)
    for hook in hooks:
        hook.remove()
    ranges = {}
    for name, module in matrices.items():
        for bound, values in enumerate(zip(*seen[name])):
            values = torch.cat([part.flatten() for part in values]).numpy()
            # Of q, k and v, and of gate and up, other parts in the first layer.
            parts = np.quantile(values, [rng.uniform(0.02, 0.08), rng.uniform(0.92, 0.98)])
            ranges[name, bound] = torch.from_numpy(parts).to(torch.bfloat16)
    for layer in range(1, fixture.vision["num_hidden_layers"]):
        for first, *others in SAME_INPUT:
            ranges |= {(f"{layer}.{other}", 0): ranges[f"{layer}.{first}", 0] for other in others}
    for name, module in matrices.items():
        for bound, which in enumerate(BOUNDS):
            getattr(module, which).copy_(ranges[name, bound // 2][bound % 2])


def random_patches(fixture, rng):
    """Pixels of images as rows of patches in the order of the model's patch embedding: from -1 to 1, of the 12B from 0 to 1."""
    images = []
    for columns, rows in GRIDS:
        shape = (columns * rows * fixture.pooled**2, fixture.patch_size**2, 3)
        colours = rng.uniform(30, 225, (shape[0], 1, 3))
        pixels = np.clip(np.rint(colours + rng.normal(0, 40, shape)), 0, 255) / 255
        pixels = pixels.transpose(0, 2, 1) if fixture.channels_first else pixels
        images.append((pixels if fixture.unified else 2 * pixels - 1).astype(np.float32).reshape(shape[0], -1))
    return images


def reorder(fixture, patches, channels_first):
    """The same patches in another order of their values."""
    if fixture.channels_first == channels_first:
        return patches
    area = fixture.patch_size**2
    rows = patches.reshape(len(patches), *((3, area) if fixture.channels_first else (area, 3)))
    return rows.transpose(0, 2, 1).reshape(len(patches), -1)


def encode(fixture, model, patches, columns):
    """What the encoder and the projector of transformers make of an image, without padding."""
    pixels = torch.from_numpy(reorder(fixture, patches, False)).to(model.dtype)[None]
    pixels = pixels if fixture.unified else (pixels + 1) / 2
    y, x = np.divmod(np.arange(len(patches)), columns)
    positions = torch.from_numpy(np.stack([x, y], -1))[None]
    kept = []
    if not fixture.unified:
        note = lambda _, inputs, output: kept.append(output.last_hidden_state[0])
        hook = model.model.vision_tower.encoder.register_forward_hook(note)
    with torch.no_grad():
        result = model.get_image_features(pixels, positions, return_dict=True)
    if not fixture.unified:
        hook.remove()
    encoded = result.last_hidden_state[0] if fixture.unified else kept[0]
    return encoded.numpy(), result.pooler_output[0].numpy()


def prompts(fixture, rng):
    """Token ids by case, and the images of each. Other tokens are neither special nor bytes."""
    boi, eoi, soft = fixture.marks
    plain = (3, boi) if fixture.gguf is None else (PLAIN.start, PLAIN.stop)
    words = lambda count: rng.integers(*plain, count).tolist()
    first, second = ([boi, *[soft] * (columns * rows), eoi] for columns, rows in GRIDS)
    long = fixture.config["sliding_window"] + 5
    return {
        "one": ([BOS, *first, *words(4)], [0]),
        "two": ([BOS, *words(1), *second, *words(2), *first, *words(3)], [1, 0]),
        "after_text": ([BOS, *words(long), *first, *words(long)], [0]),
    }


def kept_positions(fixture, ids):
    """The first and the last soft token of each image and their neighbours, some others, and the last position. Fewer where
    the vocabulary is large."""
    soft = np.array(ids) == fixture.marks[2]
    if fixture.gguf is not None:
        return [int(np.flatnonzero(soft)[0]), int(np.flatnonzero(soft)[-1]), len(ids) - 1]
    edges = np.flatnonzero(soft[1:] != soft[:-1])
    return sorted({*(edges + 1).tolist(), *edges.tolist(), *np.flatnonzero(soft)[1::4].tolist(), len(ids) - 1})


def masks(model, ids, soft):
    """Masks of sliding-window layers and of the others, by name: causal; images seen whole in sliding-window layers, as the
    12B, 26B and 31B have it; in all layers."""
    ids = torch.tensor([ids])
    types = (ids == soft).int()
    blocks = get_block_sequence_ids_for_mask(types, ids.device)
    how = dict(
        config=model.config.get_text_config(), inputs_embeds=torch.zeros(*ids.shape, 1, dtype=model.dtype),
        attention_mask=None, past_key_values=None, position_ids=torch.arange(ids.shape[1])[None],
    )
    causal = type(model).create_masks_for_generate(**how)
    sliding = create_masks_for_vision_model(block_sequence_ids=blocks, **how)
    if how["config"].use_bidirectional_attention == "vision":
        # The forward pass of Gemma4UnifiedModel has another mask by itself, see README.md.
        own = type(model).create_masks_for_generate(**how, mm_token_type_ids=types)
        assert all(torch.equal(sliding[kind], mask) for kind, mask in own.items())
    everywhere = sliding | dict(full_attention=create_causal_mask(**how, block_sequence_ids=blocks))
    return dict(causal=causal, sliding=sliding, all=everywhere)


def logits_of(model, ids, soft_tokens, mask):
    images = dict(image=SimpleNamespace(pooler_output=[torch.from_numpy(rows) for rows in soft_tokens]))
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ids]), mm_encoder_outputs=images, attention_mask=mask, use_cache=False)
    return output.logits[0].numpy()


def gguf_name(name):
    """The tensor's name in llama.cpp's files."""
    short = name.removeprefix("model.")
    if not of_vision(name):
        return gemma4.gguf_name(name)
    if short in OUTSIDE:
        return OUTSIDE[short]
    layer, part = short.removeprefix("vision_tower.encoder.layers.").split(".", 1)
    stem, last = part.replace(".linear.weight", ".weight").rsplit(".", 1)
    return f"v.blk.{layer}.{(MATRICES | NORMS)[stem]}.{last}"


def gguf_values(fixture, stored, values):
    """The tensor's values in llama.cpp's files: patches and their norm in the order channel, y, x; the table of columns
    before that of rows."""
    if values.ndim == 0:
        return values[None]
    side = fixture.patch_size
    if stored == "v.position_embd.weight" and fixture.unified:
        return np.ascontiguousarray(values.transpose(1, 0, 2))
    if stored == "v.patch_embd.weight":
        values = np.ascontiguousarray(values.reshape(len(values), side, side, 3).transpose(0, 3, 1, 2))
        return values.reshape(len(values), -1) if fixture.unified else values
    if stored.startswith("v.patch_norm.1."):
        return np.ascontiguousarray(values.reshape(side, side, 3).transpose(2, 0, 1)).reshape(-1)
    return values


def model_values(fixture, stored, values, shape):
    """The inverse of `gguf_values`."""
    side = fixture.patch_size
    if stored == "v.position_embd.weight" and fixture.unified:
        values = values.transpose(1, 0, 2)
    elif stored == "v.patch_embd.weight":
        values = values.reshape(len(values), 3, side, side).transpose(0, 2, 3, 1)
    elif stored.startswith("v.patch_norm.1."):
        values = values.reshape(3, side, side).transpose(1, 2, 0)
    return np.ascontiguousarray(values).reshape(shape)


def stored_tensors(model):
    buffers = ("layer_scalar", "std_bias", "std_scale", *BOUNDS)
    return [*model.named_parameters(), *(pair for pair in model.named_buffers() if pair[0].endswith(buffers))]


def gguf_tensors(fixture, model):
    tensors = {"rope_freqs.weight": rope_divisors(fixture.config).astype(np.float64)}
    for name, tensor in stored_tensors(model):
        stored = gguf_name(name)
        tensors[stored] = gguf_values(fixture, stored, tensor.data.double().numpy())
    return tensors


def text_keys(fixture):
    said = fixture.config
    return {
        "block_count": said["num_hidden_layers"], "embedding_length": said["hidden_size"],
        "attention.head_count": said["num_attention_heads"], "attention.head_count_kv": said["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": said["sliding_window"],
        "attention.sliding_window_pattern": [kind == SLIDING for kind in said["layer_types"]],
        "attention.shared_kv_layers": said.get("num_kv_shared_layers", 0), "feed_forward_length": said["intermediate_size"],
        "embedding_length_per_layer_input": said["hidden_size_per_layer_input"], "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4, "final_logit_softcapping": said["final_logit_softcapping"],
        **{
            f"{key}{suffix}": said[size]
            for key in ("attention.key_length", "attention.value_length", "rope.dimension_count")
            for suffix, size in (("", "global_head_dim"), ("_swa", "head_dim"))
        },
    }


def vision_keys(fixture):
    """As llama.cpp's converter writes them: sizes of layers that the 12B does not have are 0."""
    said = fixture.vision
    return {
        "clip.vision.image_size": 224, "clip.vision.patch_size": said["patch_size"],
        "clip.vision.embedding_length": said.get("hidden_size", said.get("mm_embed_dim")),
        "clip.vision.feed_forward_length": said.get("intermediate_size", 0),
        "clip.vision.block_count": said.get("num_hidden_layers", 0),
        "clip.vision.attention.head_count": said.get("num_attention_heads", 0),
        "clip.vision.attention.layer_norm_epsilon": 1e-6, "clip.vision.projection_dim": fixture.config["hidden_size"],
    }


def off(own, reference):
    return np.abs(own - reference).max() / np.abs(reference).max()


def without_ranges(fixture, keys, tensors, patches):
    """The soft tokens of the first image if nothing is clipped."""
    tensors = {name: values for name, values in tensors.items() if not name.endswith(BOUNDS)}
    return gguf_forward.gemma4_vision(keys, tensors, patches, GRIDS[0][0] * POOLED)[1]


def write_reference(folder, fixture, model, note, keys, tensors):
    """Everything that a test compares with, checked with a forward pass of our own from llama.cpp's keys and tensors."""
    rng = np.random.default_rng(fixture.seed + 1000)
    patches = random_patches(fixture, rng)
    model = gemma4.exact(model, 8.0)
    assert fixture.config["hidden_size"] == 64, "the embedding factor is exact in every format"
    own_encoder = gguf_forward.gemma4_unified_vision if fixture.unified else gguf_forward.gemma4_vision
    worst, encoded, soft, own_soft = 0.0, [], [], []
    for rows, (columns, _) in zip(patches, GRIDS):
        reference = encode(fixture, model, rows, columns * fixture.pooled)
        own = own_encoder(keys, tensors, reorder(fixture, rows, True).astype(np.float64), columns * fixture.pooled)
        worst = max(worst, *(off(*pair) for pair in zip(own, reference)))
        encoded.append(reference[0])
        soft.append(reference[1])
        own_soft.append(own[1])
    if fixture.vision.get("use_clipped_linears"):
        rows = reorder(fixture, patches[0], True).astype(np.float64)
        change = off(without_ranges(fixture, keys, tensors, rows), soft[0])
        print(f"{folder.name}: {change:.2f} of the largest soft token without clipping")
        assert change > 0.1
    right, wrong = ("causal", ["all"]) if fixture.causal else ("sliding", ["causal", "all"])
    cases, kept = [], {name: [] for name in (right, *wrong)}
    for name, (ids, chosen) in prompts(fixture, rng).items():
        is_soft = np.array(ids) == fixture.marks[2]
        starts = is_soft & ~np.concatenate([[False], is_soft[:-1]])
        blocks = np.where(is_soft, np.cumsum(starts), -1)
        rows = np.concatenate([own_soft[image] for image in chosen])
        positions = kept_positions(fixture, ids)
        other_positions = [int(np.flatnonzero(starts)[-1]), len(ids) - 1]
        logits, all_masks = {}, masks(model, ids, fixture.marks[2])
        for which in kept:
            logits[which] = logits_of(model, ids, [soft[image] for image in chosen], all_masks[which])
            images = gguf_forward.Images(
                is_soft, rows, None if which == "causal" else blocks, blocks if which == "all" else None,
            )
            worst = max(worst, off(gguf_forward.gemma4(keys, tensors, np.array(ids), [], images), logits[which]))
        largest = np.abs(logits[right]).max()
        changes = {which: np.abs(logits[right] - logits[which])[other_positions].max() / largest for which in wrong}
        described = ", ".join(f"{change:.2f} from {which}" for which, change in changes.items())
        describe(f"{folder.name}, {name}, {described}", logits[right])
        assert min(changes.values()) > 0.03, "pick another seed"
        kept[right].append(logits[right][positions])
        for which in wrong:
            kept[which].append(logits[which][other_positions])
        cases.append(dict(name=name, ids=ids, images=chosen, positions=positions, causal_positions=other_positions))
    print(f"  own forward pass in f64: {worst:.1e} of the largest value")
    assert worst < 3e-6
    files = dict(pixels=patches, encoded=encoded, soft_tokens=soft, logits=kept[right], whole_logits=kept["all"])
    if not fixture.causal:
        files["causal_logits"] = kept["causal"]
    for name, parts in files.items():
        values = np.concatenate([np.ascontiguousarray(part, dtype="<f4").reshape(-1) for part in parts])
        assert np.isfinite(values).all()
        (folder / f"{name}.bin").write_bytes(values.tobytes())
    most = lambda parts: max(len(part) for part in parts)
    reference = dict(
        note=note, transformers=transformers.__version__, torch=torch.__version__.split("+")[0], embed_scale=8.0,
        start_of_image=fixture.marks[0], end_of_image=fixture.marks[1], soft_token=fixture.marks[2],
        vocab=fixture.config["vocab_size"], images=len(GRIDS), patches=most(patches), patch_values=patches[0].shape[1],
        hidden=encoded[0].shape[1], soft_tokens=most(soft), text_hidden=soft[0].shape[1],
        grids=[[columns * fixture.pooled, rows * fixture.pooled] for columns, rows in GRIDS],
    )
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in reference.items()]
    lines.append(' "cases": [\n' + ",\n".join("  " + json.dumps(case) for case in cases) + "\n ]")
    (folder / "reference.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def processor_config(fixture):
    name = "Gemma4Unified" if fixture.unified else "Gemma4"
    processor = dict(
        do_convert_rgb=True, do_normalize=False, do_rescale=True, do_resize=True, image_mean=[0.0] * 3,
        image_processor_type=f"{name}ImageProcessor", image_std=[1.0] * 3, max_soft_tokens=MAX_SOFT_TOKENS,
        patch_size=fixture.vision["patch_size"], pooling_kernel_size=POOLED, resample=3, rescale_factor=1 / 255,
    )
    # Videos have a budget of their own.
    video = processor | dict(max_soft_tokens=2)
    return dict(image_processor=processor, image_seq_length=280, processor_class=f"{name}Processor", video_processor=video)


def hugging_face(folder, fixture):
    model = random_model(fixture, torch.bfloat16)
    save_folder(model, folder)
    published_spelling(folder / "config.json")
    (folder / "processor_config.json").write_text(json.dumps(processor_config(fixture), indent=2) + "\n")
    model = type(model).from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    keys, note = text_keys(fixture) | vision_keys(fixture), "bf16 weights, computed in f64"
    write_reference(folder, fixture, model, note, keys, gguf_tensors(fixture, model.double()))


def mmproj_metadata(writer, folder, fixture):
    """As llama.cpp's converter writes it, with an audio encoder."""
    writer.add_type("mmproj")
    writer.add_name(f"tiny random Gemma 4, image encoder of {folder.name}")
    writer.add_file_type(1)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_string("clip.vision.projector_type", "gemma4uv" if fixture.unified else "gemma4v")
    writer.add_string("clip.audio.projector_type", "gemma4ua" if fixture.unified else "gemma4a")
    for key, value in vision_keys(fixture).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    writer.add_uint32("clip.audio.block_count", 0 if fixture.unified else 1)
    writer.add_array("clip.vision.image_mean", [0.0] * 3)
    writer.add_array("clip.vision.image_std", [1.0] * 3)


def audio_tensors(fixture):
    yield "mm.a.input_projection.weight", np.ones((64, 8), np.float32)
    if not fixture.unified:
        yield "a.blk.0.ln1.weight", np.ones(8, np.float32)
        yield "a.blk.0.attn_q.input_min", np.ones(1, np.float32)


def gguf_files(folder, fixture):
    folder.mkdir()
    model = random_model(fixture, torch.float32)
    language = gguf.GGUFWriter(folder / "model.gguf", "gemma4")
    gemma4.gguf_metadata(language, folder.name, fixture.config, fixture.gguf, MORE_CONTROL, TEMPLATE)
    language.add_tensor("rope_freqs.weight", rope_divisors(fixture.config))
    encoder = gguf.GGUFWriter(folder / "mmproj-model-f16.gguf", "clip")
    mmproj_metadata(encoder, folder, fixture)
    for name, values in audio_tensors(fixture):
        encoder.add_tensor(name, values)
    for name, tensor in stored_tensors(model):
        stored = gguf_name(name)
        if not of_vision(name):
            tensor.data = torch.from_numpy(gemma4.store(language, name, tensor.data.numpy(), fixture))
            continue
        values = gguf_values(fixture, stored, tensor.data.numpy())
        # As in published files, positions are f32, and so are all vectors.
        if values.ndim == 1 or "position_embd" in stored:
            encoder.add_tensor(stored, values)
        else:
            values = store_matrix(encoder, stored, values, Type.F16)
        tensor.data = torch.from_numpy(model_values(fixture, stored, values, tuple(tensor.shape)))
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
        (gguf_files if fixture.gguf is not None else hugging_face)(out / name, fixture)

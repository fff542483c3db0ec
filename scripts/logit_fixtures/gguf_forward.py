"""A forward pass in float64 from nothing but the names and keys of a GGUF file, to check that files say what they should.

It follows llama.cpp's reading of the keys and shares no code with transformers.
"""
import math
from dataclasses import dataclass

import gguf
import numpy as np


def read(path):
    """Keys without the architecture's prefix, and tensors by name."""
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    keys = {name.removeprefix(arch + "."): field.contents() for name, field in reader.fields.items()}
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    return arch, keys, tensors


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def rms_norm(x, epsilon, weight=1.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotate(heads, frequencies, adjacent, positions=None):
    """RoPE of `[positions][heads][width]`; the two values of a pair are adjacent, or half a head apart. Positions are
    0, 1 and so on unless given."""
    angles = (np.arange(len(heads)) if positions is None else positions)[:, None, None] * frequencies
    half = heads.shape[-1] // 2
    first, second = (heads[..., 0::2], heads[..., 1::2]) if adjacent else (heads[..., :half], heads[..., half:])
    turned = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
    return np.stack(turned, -1).reshape(heads.shape) if adjacent else np.concatenate(turned, -1)


def attention(q, k, v, scale, window=None, blocks=None):
    """Attention of `[positions][heads][width]`, concatenated over heads: causal, except that positions of the same block
    see those after them. `blocks` has the block of each position, or -1."""
    group = q.shape[1] // k.shape[1]
    scores = np.einsum("qhd,khd->hqk", q, k.repeat(group, 1)) * scale
    distance = np.arange(len(q))[:, None] - np.arange(len(k))
    later = distance < 0
    if blocks is not None:
        later &= (blocks[:, None] != blocks) | (blocks[:, None] < 0)
    hidden = later | (distance >= (window or math.inf))
    weights = softmax(np.where(hidden, -np.inf, scores))
    return np.einsum("hqk,khd->qhd", weights, v.repeat(group, 1)).reshape(len(q), -1)


def per_layer(value, count):
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


def gemma4_experts(keys, tensor, h, epsilon, route_margins):
    gate_inp, scale = tensor("ffn_gate_inp.weight"), tensor("ffn_gate_inp.scale")
    router = softmax(rms_norm(h, epsilon) / math.sqrt(h.shape[-1]) * scale @ gate_inp.T)
    used = keys["expert_used_count"]
    order = np.sort(router, -1)[:, ::-1]
    route_margins.append(np.log(order[:, used - 1] / order[:, used]).min())
    chosen = np.argsort(-router, -1)[:, :used]
    normed = rms_norm(h, epsilon, tensor("pre_ffw_norm_2.weight"))
    both = tensor("ffn_gate_up_exps.weight")
    if both is None:
        both = np.concatenate([tensor("ffn_gate_exps.weight"), tensor("ffn_up_exps.weight")], 1)
    down, down_scale = tensor("ffn_down_exps.weight"), tensor("ffn_down_exps.scale")
    assert both.shape[1] == 2 * keys["expert_feed_forward_length"] and len(both) == keys["expert_count"]
    total = np.zeros_like(h)
    for position, experts in enumerate(chosen):
        weights = router[position, experts] / router[position, experts].sum()
        for expert, weight in zip(experts, weights):
            gate, up = np.split(both[expert] @ normed[position], 2)
            total[position] += weight * down_scale[expert] * (down[expert] @ (gelu(gate) * up))
    return total


@dataclass
class Images:
    """Soft tokens in a prompt: rows that replace the embeddings of marked positions, and blocks, as in `attention`, of
    sliding-window layers and of the others."""
    is_soft: np.ndarray
    rows: np.ndarray
    sliding_blocks: np.ndarray | None
    global_blocks: np.ndarray | None


def gemma4(keys, tensors, ids, route_margins, images=None):
    """Logits. Soft tokens are not multiplied by the embedding factor, and have the per-layer embedding of token 0."""
    layers, heads, epsilon = keys["block_count"], keys["attention.head_count"], keys["attention.layer_norm_rms_epsilon"]
    sliding, kv_heads = keys["attention.sliding_window_pattern"], per_layer(keys["attention.head_count_kv"], layers)
    feed_forward, shared = per_layer(keys["feed_forward_length"], layers), keys["attention.shared_kv_layers"]
    extra = keys["embedding_length_per_layer_input"]
    if images is not None:
        ids = np.where(images.is_soft, 0, ids)
    h = tensors["token_embd.weight"][ids] * math.sqrt(keys["embedding_length"])
    if images is not None:
        h[images.is_soft] = images.rows
    if extra:
        context = (h @ tensors["per_layer_model_proj.weight"].T / math.sqrt(h.shape[-1])).reshape(-1, layers, extra)
        context = rms_norm(context, epsilon, tensors["per_layer_proj_norm.weight"])
        table = tensors["per_layer_token_embd.weight"][ids].reshape(-1, layers, extra) * math.sqrt(extra)
        inputs = (context + table) / math.sqrt(2)
    kept = {}
    for layer in range(layers):
        tensor = lambda name: tensors.get(f"blk.{layer}.{name}")
        suffix = "_swa" if sliding[layer] else ""
        width = keys["attention.key_length" + suffix]
        assert width == keys["attention.value_length" + suffix] == keys["rope.dimension_count" + suffix]
        frequencies = keys["rope.freq_base" + suffix] ** (-np.arange(0, width, 2) / width)
        if not sliding[layer]:
            frequencies = frequencies / tensors["rope_freqs.weight"]
        normed = rms_norm(h, epsilon, tensor("attn_norm.weight"))
        split = lambda name, count: (normed @ tensor(name).T).reshape(len(ids), count, width)
        q = rotate(rms_norm(split("attn_q.weight", heads), epsilon, tensor("attn_q_norm.weight")), frequencies, False)
        if layer < layers - shared:
            k = split("attn_k.weight", kv_heads[layer])
            v = k if tensor("attn_v.weight") is None else split("attn_v.weight", kv_heads[layer])
            k = rotate(rms_norm(k, epsilon, tensor("attn_k_norm.weight")), frequencies, False)
            kept[sliding[layer]] = k, rms_norm(v, epsilon)
        k, v = kept[sliding[layer]]
        window = keys["attention.sliding_window"] if sliding[layer] else None
        blocks = images and (images.sliding_blocks if sliding[layer] else images.global_blocks)
        attended = attention(q, k, v, 1.0, window, blocks) @ tensor("attn_output.weight").T
        h = h + rms_norm(attended, epsilon, tensor("post_attention_norm.weight"))
        normed = rms_norm(h, epsilon, tensor("ffn_norm.weight"))
        assert len(tensor("ffn_gate.weight")) == feed_forward[layer]
        out = gelu(normed @ tensor("ffn_gate.weight").T) * (normed @ tensor("ffn_up.weight").T)
        out = out @ tensor("ffn_down.weight").T
        if tensor("ffn_gate_inp.weight") is not None:
            experts = gemma4_experts(keys, tensor, h, epsilon, route_margins)
            out = rms_norm(out, epsilon, tensor("post_ffw_norm_1.weight"))
            out = out + rms_norm(experts, epsilon, tensor("post_ffw_norm_2.weight"))
        h = h + rms_norm(out, epsilon, tensor("post_ffw_norm.weight"))
        if extra:
            gate = gelu(h @ tensor("inp_gate.weight").T) * inputs[:, layer]
            h = h + rms_norm(gate @ tensor("proj.weight").T, epsilon, tensor("post_norm.weight"))
        h = h * tensor("layer_output_scale.weight")
    h = rms_norm(h, epsilon, tensors["output_norm.weight"])
    cap = keys["final_logit_softcapping"]
    return np.tanh(h @ tensors["token_embd.weight"].T / cap) * cap


def layer_norm(x, epsilon, weight, bias):
    x = x - x.mean(-1, keepdims=True)
    return rms_norm(x, epsilon, weight) + bias


def siglip(keys, tensors, patches):
    """The output of Gemma 3's image encoder after its last norm, and its soft tokens, from rows of pixels."""
    key = lambda name: keys[f"clip.vision.{name}"]
    heads, epsilon = key("attention.head_count"), key("attention.layer_norm_epsilon")
    weights = tensors["v.patch_embd.weight"]
    h = patches @ weights.reshape(len(weights), -1).T + tensors["v.patch_embd.bias"] + tensors["v.position_embd.weight"]
    for layer in range(key("block_count")):
        tensor = lambda name: tensors[f"v.blk.{layer}.{name}"]
        linear = lambda x, name: x @ tensor(f"{name}.weight").T + tensor(f"{name}.bias")
        normed = layer_norm(h, epsilon, tensor("ln1.weight"), tensor("ln1.bias"))
        q, k, v = (linear(normed, f"attn_{part}").reshape(len(h), heads, -1) for part in "qkv")
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        h = h + linear(np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(len(h), -1), "attn_out")
        normed = layer_norm(h, epsilon, tensor("ln2.weight"), tensor("ln2.bias"))
        h = h + linear(gelu(linear(normed, "ffn_up")), "ffn_down")
    h = layer_norm(h, epsilon, tensors["v.post_ln.weight"], tensors["v.post_ln.bias"])
    side, pooled = key("image_size") // key("patch_size"), key("projector.scale_factor")
    squares = h.reshape(side // pooled, pooled, side // pooled, pooled, -1).mean((1, 3)).reshape(-1, h.shape[-1])
    normed = rms_norm(squares, epsilon, tensors["mm.soft_emb_norm.weight"])
    return h, normed @ tensors["mm.input_projection.weight"]


def gemma4_vision(keys, tensors, patches, columns):
    """The output of Gemma 4's image encoder before pooling, and its soft tokens, from rows of pixels between -1 and 1 of
    an image of this many columns of patches."""
    key = lambda name: keys[f"clip.vision.{name}"]
    heads, epsilon = key("attention.head_count"), key("attention.layer_norm_epsilon")
    weights, (x_table, y_table) = tensors["v.patch_embd.weight"], tensors["v.position_embd.weight"]
    y, x = np.divmod(np.arange(len(patches)), columns)
    h = patches @ weights.reshape(len(weights), -1).T + x_table[x] + y_table[y]

    def rotate_both(rows):
        half = rows.shape[-1] // 2
        frequencies = 100.0 ** (-np.arange(0, half, 2) / half)
        halves = (rows[..., :half], x), (rows[..., half:], y)
        return np.concatenate([rotate(part, frequencies, False, positions) for part, positions in halves], -1)

    for layer in range(key("block_count")):
        tensor = lambda name: tensors[f"v.blk.{layer}.{name}"]

        def linear(rows, name):
            clip = lambda rows, which: np.clip(rows, tensor(f"{name}.{which}_min"), tensor(f"{name}.{which}_max"))
            if f"v.blk.{layer}.{name}.input_min" not in tensors:
                return rows @ tensor(f"{name}.weight").T
            return clip(clip(rows, "input") @ tensor(f"{name}.weight").T, "output")

        normed = rms_norm(h, epsilon, tensor("ln1.weight"))
        q, k, v = (linear(normed, f"attn_{part}").reshape(len(h), heads, -1) for part in "qkv")
        q = rotate_both(rms_norm(q, epsilon, tensor("attn_q_norm.weight")))
        k = rotate_both(rms_norm(k, epsilon, tensor("attn_k_norm.weight")))
        weights = softmax(np.einsum("qhd,khd->hqk", q, k))
        attended = np.einsum("hqk,khd->qhd", weights, rms_norm(v, epsilon)).reshape(len(h), -1)
        h = h + rms_norm(linear(attended, "attn_out"), epsilon, tensor("attn_post_norm.weight"))
        normed = rms_norm(h, epsilon, tensor("ln2.weight"))
        out = linear(gelu(linear(normed, "ffn_gate")) * linear(normed, "ffn_up"), "ffn_down")
        h = h + rms_norm(out, epsilon, tensor("ffn_post_norm.weight"))
    pooled = keys.get("clip.vision.projector.scale_factor", 3)
    squares = h.reshape(-1, pooled, columns // pooled, pooled, h.shape[-1]).mean((1, 3)).reshape(-1, h.shape[-1])
    squares = squares * math.sqrt(h.shape[-1])
    if "v.std_bias" in tensors:
        squares = (squares - tensors["v.std_bias"]) * tensors["v.std_scale"]
    return h, rms_norm(squares, epsilon) @ tensors["mm.input_projection.weight"].T


def gemma4_unified_vision(keys, tensors, patches, columns):
    """The same of the 12B, whose patches are those of soft tokens and have pixels between 0 and 1."""

    def norm(rows, number):
        weight, bias = (tensors[f"v.patch_norm.{number}.{part}"] for part in ("weight", "bias"))
        return layer_norm(rows, 1e-5, weight, bias)

    x_table, y_table = tensors["v.position_embd.weight"]
    y, x = np.divmod(np.arange(len(patches)), columns)
    h = norm(norm(patches, 1) @ tensors["v.patch_embd.weight"].T + tensors["v.patch_embd.bias"], 2)
    h = norm(h + x_table[x] + y_table[y], 3)
    return h, rms_norm(h, keys["clip.vision.attention.layer_norm_epsilon"]) @ tensors["mm.input_projection.weight"].T


def gemma3(keys, tensors, ids, is_soft, soft_tokens, blocks):
    """Logits. Rows of `soft_tokens` replace the embeddings of positions that `is_soft` marks, and are not multiplied by the
    embedding factor."""
    heads, kv_heads, width = (keys["attention." + key] for key in ("head_count", "head_count_kv", "key_length"))
    epsilon, window = keys["attention.layer_norm_rms_epsilon"], keys["attention.sliding_window"]
    h = tensors["token_embd.weight"][np.where(is_soft, 0, ids)] * math.sqrt(keys["embedding_length"])
    h[is_soft] = soft_tokens
    for layer in range(keys["block_count"]):
        tensor = lambda name: tensors[f"blk.{layer}.{name}.weight"]
        is_global = (layer + 1) % keys["attention.sliding_window_pattern"] == 0
        base, divisor = (keys["rope.freq_base"], keys.get("rope.scaling.factor", 1)) if is_global else (1e4, 1)
        frequencies = base ** (-np.arange(0, width, 2) / width) / divisor
        normed = rms_norm(h, epsilon, tensor("attn_norm"))
        split = lambda name, count: (normed @ tensor(name).T).reshape(len(ids), count, width)
        q = rotate(rms_norm(split("attn_q", heads), epsilon, tensor("attn_q_norm")), frequencies, False)
        k = rotate(rms_norm(split("attn_k", kv_heads), epsilon, tensor("attn_k_norm")), frequencies, False)
        v = split("attn_v", kv_heads)
        attended = attention(q, k, v, 1 / math.sqrt(width), None if is_global else window, blocks)
        h = h + rms_norm(attended @ tensor("attn_output").T, epsilon, tensor("post_attention_norm"))
        normed = rms_norm(h, epsilon, tensor("ffn_norm"))
        out = gelu(normed @ tensor("ffn_gate").T) * (normed @ tensor("ffn_up").T)
        h = h + rms_norm(out @ tensor("ffn_down").T, epsilon, tensor("post_ffw_norm"))
    return rms_norm(h, epsilon, tensors["output_norm.weight"]) @ tensors["token_embd.weight"].T


def yarn(keys, width):
    """Frequencies: short wavelengths are kept, long ones are divided by the factor, with a ramp in between."""
    base, original = keys["rope.freq_base"], keys["rope.scaling.original_context_length"]
    pair = lambda turns: width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
    low = max(math.floor(pair(keys["rope.scaling.yarn_beta_fast"])), 0)
    high = min(math.ceil(pair(keys["rope.scaling.yarn_beta_slow"])), width - 1)
    ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 0.001), 0, 1)
    assert {0.0, 1.0} < set(ramp), "all three bands"
    # cos and sin would be scaled by (0.1 ln factor + 1) / (0.1 multiplier ln factor + 1).
    assert keys["rope.scaling.type"] == "yarn" and keys["rope.scaling.yarn_log_multiplier"] == 1
    return base ** (-np.arange(0, width, 2) / width) * (1 - ramp + ramp / keys["rope.scaling.factor"])


def mistral3(keys, tensors, ids):
    heads, kv_heads, width = (keys["attention." + key] for key in ("head_count", "head_count_kv", "key_length"))
    epsilon, frequencies = keys["attention.layer_norm_rms_epsilon"], yarn(keys, width)
    blocks = np.arange(len(ids)) // keys["rope.scaling.original_context_length"]
    temperature = 1 + keys["attention.temperature_scale"] * np.log(1 + blocks)
    h = tensors["token_embd.weight"][ids]
    for layer in range(keys["block_count"]):
        tensor = lambda name: tensors[f"blk.{layer}.{name}.weight"]
        normed = rms_norm(h, epsilon, tensor("attn_norm"))
        split = lambda name, count: (normed @ tensor(name).T).reshape(len(ids), count, width)
        q = rotate(split("attn_q", heads), frequencies, True) * temperature[:, None, None]
        k, v = rotate(split("attn_k", kv_heads), frequencies, True), split("attn_v", kv_heads)
        h = h + attention(q, k, v, 1 / math.sqrt(width)) @ tensor("attn_output").T
        normed = rms_norm(h, epsilon, tensor("ffn_norm"))
        h = h + (silu(normed @ tensor("ffn_gate").T) * (normed @ tensor("ffn_up").T)) @ tensor("ffn_down").T
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return rms_norm(h, epsilon, tensors["output_norm.weight"]) @ head.T


def check(path, ids, logits):
    """Compare with the reference. Also, no token may be so near to another choice of experts that rounding decides."""
    arch, keys, tensors = read(path)
    margins = [math.inf]
    own = gemma4(keys, tensors, ids, margins) if arch == "gemma4" else mistral3(keys, tensors, ids)
    off = np.abs(own - logits).max() / np.abs(logits).max()
    print(f"  from GGUF in f64: {off:.1e} of the largest logit; router margin {min(margins):.4f}")
    assert off < 3e-6 and min(margins) > 2e-3, "pick another seed, or the file is wrong"

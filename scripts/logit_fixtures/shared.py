"""Shared by the fixtures of all families: random weights, references, greedy text, tensors in GGUF files."""
import json
import math
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

PROMPT, LONG_PROMPT, GREEDY = 24, 300, 12


def randomize(model, rng, spread):
    """Randomise every parameter in name order, since module order may change between versions. `spread` maps a tensor's name to
    its mean and standard deviation."""
    for name, parameter in sorted(model.named_parameters()):
        mean, deviation = spread(name)
        values = mean + deviation * rng.standard_normal(tuple(parameter.shape))
        parameter.data = torch.from_numpy(values.astype(np.float32)).to(parameter.dtype)


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def greedy_text(model, tokens, ids, plain):
    """The greedy continuation of `ids`, which must vary, consist of `plain` tokens and have no near-tie."""
    greedy, margin = [], math.inf
    while len(greedy) < GREEDY:
        last = logits_of(model, ids + greedy)[-1]
        greedy.append(int(last.argmax()))
        margin = min(margin, float(np.diff(np.sort(last)[-2:])[0]))
    good = all(token in plain for token in greedy) and len(set(greedy)) >= 6 and margin > 0.03
    assert good, f"pick another seed: {greedy}, {margin}"
    written = "".join(tokens[token] for token in greedy).replace("▁", " ").replace("Ġ", " ").replace("Ċ", "\n")
    return dict(greedy=greedy, greedy_text=written, greedy_margin=round(margin, 4))


def random_prompt(rng, first, vocab, length):
    """Token ids and the positions to keep: all of them for a short prompt."""
    ids = [first, *rng.integers(3, vocab, length - 1).tolist()]
    return ids, list(range(length)) if length == PROMPT else [*range(0, length - 1, 7), length - 1]


def text_positions(ids):
    return [*range(0, len(ids) - 1, 5), len(ids) - 1]


def describe(name, logits):
    top = np.sort(logits, axis=-1)
    margin = top[:, -1] - top[:, -2]
    print(
        f"{name}: deviation {logits.std():.2f}, largest {np.abs(logits).max():.2f}, "
        f"top-1 margin min {margin.min():.4f} median {np.median(margin):.3f}"
    )


def write_reference(folder, note, factor, ids, logits, positions, **more):
    kept = np.ascontiguousarray(logits[positions], dtype="<f4")
    assert np.isfinite(kept).all()
    (folder / "logits.bin").write_bytes(kept.tobytes())
    reference = dict(
        note=note, transformers=transformers.__version__, torch=torch.__version__.split("+")[0], embed_scale=factor,
        **more, ids=ids, positions=positions, vocab=logits.shape[1],
    )
    lines = (f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in reference.items())
    (folder / "reference.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    describe(folder.name, logits)


def save_folder(model, folder, **how):
    model.save_pretrained(folder, **how)
    (folder / "generation_config.json").unlink()
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes 600


def gguf_name(name, names):
    parts, last = name.rsplit(".", 1)[0].split("."), name.rsplit(".", 1)[1]
    if parts[1:2] == ["layers"]:
        return f"blk.{parts[2]}.{names['.'.join(parts[3:])]}.{last}"
    return f"{names['.'.join(parts)]}.{last}"


def store_matrix(writer, name, values, kind):
    """Write a matrix and return it as a reader would see it."""
    stored = gguf.quants.quantize(values, kind)
    writer.add_tensor(name, stored, raw_dtype=kind)
    return gguf.quants.dequantize(stored, kind).astype(np.float32)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def folder_size(out: Path):
    return sum(file.stat().st_size for file in out.rglob("*") if file.is_file())

"""Tiny embedding models of every kind, in folders of sentence-transformers and in GGUF files."""
import json
import shutil
from dataclasses import dataclass, field

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from transformers import BertConfig, BertModel, Gemma3TextConfig, Gemma3TextModel, Qwen3Config, Qwen3Model

from . import tokens

VOCAB = 96
# Single tokens, more than a page of the KV cache, and around the windows.
LENGTHS = (1, 2, 7, 70, 3, 12, 65)
WINDOW = 8

MODULES = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}
GGUF_POOLING = {"mean": 1, "cls": 2, "last": 3}


@dataclass
class Fixture:
    kind: str
    seed: int
    pooling: str
    layers: int = 2
    dense: tuple = ()
    normalize: bool = True
    prefix: str = ""
    dtype: str = "float32"
    gguf: Type | None = None
    more: dict = field(default_factory=dict)


GEMMA = dict(layer_types=["sliding_attention", "full_attention"], sliding_window=WINDOW, use_bidirectional_attention=True)

FIXTURES = {
    "bert_mean": Fixture("bert", 1, "mean"),
    "bert_cls": Fixture("bert", 2, "cls", layers=1, normalize=False, prefix="bert."),
    "bert_gguf_f16": Fixture("bert", 3, "cls", layers=1, gguf=Type.F16),
    "bert_gguf_q8_0": Fixture("bert", 4, "mean", gguf=Type.Q8_0),
    "embeddinggemma": Fixture("gemma", 5, "mean", dense=(96, 48), dtype="bfloat16", more=GEMMA),
    "embeddinggemma_gguf_q8_0": Fixture("gemma", 6, "mean", dense=(96, 48), gguf=Type.Q8_0, more=GEMMA),
    "qwen3_embedding": Fixture("qwen3", 7, "last", dtype="bfloat16"),
    "qwen3_embedding_prefixed": Fixture("qwen3", 8, "last", layers=1, prefix="model."),
    "qwen3_embedding_gguf_f16": Fixture("qwen3", 9, "last", layers=1, gguf=Type.F16),
}


def build(fixture):
    common = dict(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=fixture.layers, max_position_embeddings=128,
        attn_implementation="eager",
    )
    if fixture.kind == "bert":
        config = BertConfig(num_attention_heads=2, **common)
        return BertModel(config, add_pooling_layer=False), config
    common |= dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6)
    if fixture.kind == "gemma":
        # The pattern of GGUF files cannot be set: all layers of a short model are in windows.
        more = dict(fixture.more)
        if fixture.gguf is not None:
            more["layer_types"] = ["sliding_attention"] * fixture.layers
        config = Gemma3TextConfig(query_pre_attn_scalar=32, **common, **more)
        return Gemma3TextModel(config), config
    config = Qwen3Config(rope_theta=1e6, **common)
    return Qwen3Model(config), config


def randomize(parameters, rng):
    """Biases and norms too: zeros and ones would hide mistakes."""
    values = {}
    for name, parameter in sorted(parameters.items()):
        shape = tuple(parameter.shape)
        if len(shape) == 1:
            mean = 1.0 if "LayerNorm.weight" in name or name.endswith("norm.weight") else 0.0
            values[name] = mean + 0.3 * rng.standard_normal(shape)
        else:
            deviation = 1.0 if "embed" in name else 1.5 / np.sqrt(shape[1])
            values[name] = deviation * rng.standard_normal(shape)
    return {name: value.astype(np.float32) for name, value in values.items()}


def vectors(model, dense, pooling, texts, normalize):
    """In float64, each text alone."""
    model = model.double().eval()
    rows = []
    for ids in texts:
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        row = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        for matrix in dense:
            row = matrix.astype(np.float64) @ row
        rows.append(row / np.linalg.norm(row) if normalize else row)
    return np.array(rows)


def texts_of(rng):
    return [rng.integers(0, VOCAB, length).tolist() for length in LENGTHS]


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def folder_files(folder, fixture, config, values, dense):
    """What sentence-transformers saves."""
    module = lambda idx, name, path: dict(idx=idx, name=str(idx), path=path, type=f"sentence_transformers.models.{name}")
    modules = [module(0, "Transformer", ""), module(1, "Pooling", "1_Pooling")]
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, MODULES[fixture.pooling]: True})
    for index, matrix in enumerate(dense, 2):
        modules.append(module(index, "Dense", f"{index}_Dense"))
        shape = dict(in_features=matrix.shape[1], out_features=matrix.shape[0], bias=False)
        write_json(folder / f"{index}_Dense/config.json", shape | {"activation_function": "torch.nn.modules.linear.Identity"})
        save_file({"linear.weight": matrix}, folder / f"{index}_Dense/model.safetensors")
    if fixture.normalize:
        modules.append(module(len(modules), "Normalize", f"{len(modules)}_Normalize"))
    write_json(folder / "modules.json", modules)
    if fixture.kind == "bert":
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": 100, "do_lower_case": False})
    else:
        prompts = {"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": None}
        write_json(folder / "config_sentence_transformers.json", prompts)
    (folder / "config.json").write_text(config.to_json_string())
    tensors = {fixture.prefix + name: torch.from_numpy(value).to(getattr(torch, fixture.dtype)) for name, value in values.items()}
    save_torch(tensors, folder / "model.safetensors")
    if fixture.kind == "bert":
        (folder / "tokenizer.json").write_text(tokens.word_piece(VOCAB).to_str(pretty=False))
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes 600


BERT_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}
DECODER_NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(kind, name):
    stem, last = name.rsplit(".", 1)
    names = BERT_NAMES if kind == "bert" else DECODER_NAMES
    after = {"gemma": "post_attention_norm", "qwen3": "ffn_norm"}.get(kind)
    names = names | {"post_attention_layernorm": after}
    for prefix in ("encoder.layer.", "layers."):
        if stem.startswith(prefix):
            layer, part = stem[len(prefix):].split(".", 1)
            return f"blk.{layer}.{names[part]}.{last}"
    return f"{names[stem]}.{last}"


def gguf_file(folder, fixture, config, values, dense):
    """Writes the file and returns the values as a reader sees them."""
    architecture = {"bert": "bert", "gemma": "gemma-embedding", "qwen3": "qwen3"}[fixture.kind]
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_block_count(fixture.layers)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_uint32(f"{architecture}.pooling_type", GGUF_POOLING[fixture.pooling])
    if fixture.kind == "bert":
        writer.add_layer_norm_eps(1e-12)
        writer.add_causal_attention(False)
        tokens.word_piece_gguf(writer, VOCAB)
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(32)
        writer.add_value_length(32)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(1e6)
        if fixture.kind == "gemma":
            writer.add_sliding_window(WINDOW)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([f"▁{number}" for number in range(VOCAB)])
        writer.add_token_scores([-float(number) for number in range(VOCAB)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(fixture.kind == "gemma")
        writer.add_add_eos_token(True)

    def store(name, value):
        if value.ndim == 1 or "position" in name or "types" in name:
            writer.add_tensor(name, value)
            return value
        stored = gguf.quants.quantize(value, fixture.gguf)
        writer.add_tensor(name, stored, raw_dtype=fixture.gguf)
        return gguf.quants.dequantize(stored, fixture.gguf).astype(np.float32)

    read = {}
    for name, value in values.items():
        plus = 1.0 if fixture.kind == "gemma" and value.ndim == 1 else 0.0
        read[name] = store(gguf_name(fixture.kind, name), value + np.float32(plus)) - np.float32(plus)
    dense = [store(f"dense_{index}.weight", matrix) for index, matrix in enumerate(dense, 2)]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read, dense


def make(out):
    for name, fixture in FIXTURES.items():
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        rng = np.random.default_rng(fixture.seed)
        model, config = build(fixture)
        values = randomize(model.state_dict() if fixture.kind != "bert" else dict(model.named_parameters()), rng)
        widths = [32, *fixture.dense]
        dense = [
            (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
            for columns, rows in zip(widths, widths[1:])
        ]
        if fixture.gguf is not None:
            values, dense = gguf_file(folder, fixture, config, values, dense)
        else:
            kind = getattr(torch, fixture.dtype)
            values = {name: torch.from_numpy(value).to(kind).float().numpy() for name, value in values.items()}
            folder_files(folder, fixture, config, values, dense)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()}, strict=False)
        if fixture.kind == "gemma":
            # As transformers rounds it to the type of the embeddings.
            factor = torch.tensor(32**0.5)
            factor = factor.to(torch.bfloat16) if fixture.gguf is None else factor
            model.embed_tokens.embed_scale = factor.double()
            model.embed_tokens.scalar_embed_scale = float(factor)
        texts = texts_of(rng)
        rows = vectors(model, dense, fixture.pooling, texts, fixture.normalize or fixture.gguf is not None)
        reference = dict(
            transformers=transformers.__version__, torch=torch.__version__.split("+")[0], normalized=fixture.normalize,
            texts=texts, vectors=[[float(f"{value:.8g}") for value in row] for row in rows],
        )
        (folder / "reference.json").write_text(json.dumps(reference) + "\n")
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        print(f"{name}: {size} bytes, {rows.shape}")

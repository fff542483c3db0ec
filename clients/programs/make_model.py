#!/usr/bin/env python3
"""Write a model of 300 KB that calls tools, for programs to talk to: weights set by hand, nothing learned.

usage: make_model.py FILE.gguf    (needs the packages gguf and numpy)

It is a Qwen 2 with one layer, a byte-level vocabulary and a chat template with tools, and it behaves the same at every
temperature:
- each "§" in the conversation asks for one tool call, and each call in the conversation answers one "§";
- while a call is due it starts one, after a call in the same message or as a message of its own;
- otherwise it says "This is the answer." and ends the message.

Within a call the server's grammar leaves few tokens to choose from, of which the model prefers those that end something:
strings and arrays are as short as their schema allows, optional properties are left out, and of two names or enum values
the first in the alphabet is taken.
"""
import sys

import gguf
import numpy as np

WIDTH = 64  # hidden size, head dimension and FFN size
CONTEXT = 1 << 17
# Never turns by a noticeable angle within the context: the lowest frequency is ROPE_THETA^-(31/32).
ROPE_THETA = 1e9
ASK, CALL, CALL_END, TURN, END = "§", "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>"
ANSWER = ["This", " is", " the", " answer", "."]
# Words of schemas and prose that become one token each, so that prompts have a plausible number of tokens.
WORDS = (
    "type function name description parameters object properties string integer boolean array items enum required "
    "additionalProperties false true number minimum maximum default path file line start end text query pattern "
    "tool call the and for with from that this when you not are use user assistant system result answer model code "
    "change list read write find test always never before after each one all any"
).split()

TEMPLATE = r"""
{%- if tools %}
  {{- '<|im_start|>system\n' }}
  {%- if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}
  {{- '# Tools\n\nSignatures of the functions that may be called:\n<tools>' }}
  {%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}
  {{- '\n</tools>\nA call is one JSON object:\n{"name": NAME, "arguments": ARGUMENTS}<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
  {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
  {%- if message.role == 'tool' %}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
    {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
  {%- elif message.role == 'assistant' and message.tool_calls %}
    {{- '<|im_start|>assistant' }}
    {%- if message.content %}{{ '\n' + message.content }}{% endif %}
    {%- for call in message.tool_calls %}
      {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
      {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif message.role != 'system' or not loop.first %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
""".lstrip()


def byte_letters():
    """GPT-2's character for each byte."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in prints]
    return {byte: chr(byte) for byte in prints} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


LETTERS = byte_letters()


def spelled(text):
    return "".join(LETTERS[byte] for byte in text.encode())


def vocabulary():
    """Tokens and merges: bytes, then every prefix of every word."""
    tokens, merges = list(LETTERS.values()), []
    for word in [ASK, *ANSWER, *(space + word for word in WORDS for space in ("", " "))]:
        letters = spelled(word)
        for length in range(2, len(letters) + 1):
            if letters[:length] not in tokens:
                tokens.append(letters[:length])
                merges.append(f"{letters[: length - 1]} {letters[length - 1]}")
    tokens += [CALL, CALL_END, "<|endoftext|>", TURN, END]
    # Rows of a matrix in a multiple of 16.
    tokens += [f"[PAD{n}]" for n in range(-len(tokens) % 16)]
    return tokens, merges


# What the hidden state says about the current token. Every token has CONSTANT and one other feature, so that all have the
# same norm.
CONSTANT, OTHER, NEWLINE, ASKED, CALLED, BRACE, BRACKET, WORD = 0, 1, 2, 3, 4, 5, 6, 8
# What attention adds: (asked - called) / (asked + called) over the conversation so far, 0 without either.
DUE = 32
# The normalisation multiplies a state with two ones by this.
NORM = (WIDTH / 2) ** 0.5


def embedding(tokens):
    table = np.zeros((len(tokens), WIDTH), np.float32)
    table[:, CONSTANT] = table[:, OTHER] = 1
    features = {spelled("\n"): NEWLINE, spelled(ASK): ASKED, CALL_END: CALLED, "{": BRACE, "[": BRACKET}
    features |= {spelled(word): WORD + at for at, word in enumerate(ANSWER)}
    for token, feature in features.items():
        row = table[tokens.index(token)]
        row[OTHER], row[feature] = 0, 1
    return table


def head(tokens):
    """Logits: `table[token, feature]`, in steps that no temperature in use overcomes."""
    table = np.zeros((len(tokens), WIDTH), np.float32)
    row = lambda token: table[tokens.index(token)]
    # Without anything else to say: end the message, or the innermost thing that is open.
    table[:, CONSTANT] = -600
    row(END)[CONSTANT] = 0
    for rank, token in enumerate([*'"}]', CALL_END, *",: ", *"0123456789", *"abcdefghijklmnopqrstuvwxyz"]):
        row(token if token == CALL_END else spelled(token))[CONSTANT] = -40 - 12 * rank
    row("}")[BRACE] = row("]")[BRACKET] = 1000
    for unused in [token for token in tokens if token.startswith("[PAD")] + [TURN, "<|endoftext|>"]:
        row(unused)[CONSTANT] = -6000
    # The answer follows the newline that starts a message, and its words each other.
    for feature, token in zip([NEWLINE, *range(WORD, WORD + len(ANSWER))], [*map(spelled, ANSWER), END]):
        row(token)[feature] += 1000
    # A call does, if one is due: DUE is at least 1/13 with up to seven in a conversation.
    for feature, token in [(NEWLINE, CALL), (CALLED, spelled("\n"))]:
        row(token)[CONSTANT], row(token)[feature], row(token)[DUE] = -30000, 29500, 20000
    return table


def tensors(tokens):
    zeros = lambda *shape: np.zeros(shape, np.float32)
    yield "token_embd.weight", embedding(tokens)
    yield "output.weight", head(tokens)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        yield f"{name}.weight", np.full(WIDTH, 1 / NORM, np.float32)
    # Only "§" and the end of a call get attention: exp(18) times as much as any other token.
    lowest = WIDTH - 1
    query_bias, key, value, output = zeros(WIDTH), zeros(WIDTH, WIDTH), zeros(WIDTH, WIDTH), zeros(WIDTH, WIDTH)
    query_bias[lowest] = 12
    key[lowest, [ASKED, CALLED]] = 12
    value[0, ASKED], value[0, CALLED], output[DUE, 0] = 1, -1, 1
    yield "blk.0.attn_q.weight", zeros(WIDTH, WIDTH)
    yield "blk.0.attn_q.bias", query_bias
    yield "blk.0.attn_k.weight", key
    yield "blk.0.attn_k.bias", zeros(WIDTH)
    yield "blk.0.attn_v.weight", value
    yield "blk.0.attn_v.bias", zeros(WIDTH)
    yield "blk.0.attn_output.weight", output
    for name in ("gate", "up", "down"):
        yield f"blk.0.ffn_{name}.weight", zeros(WIDTH, WIDTH)


def main(path):
    tokens, merges = vocabulary()
    kinds = {CALL: gguf.TokenType.USER_DEFINED, CALL_END: gguf.TokenType.USER_DEFINED}
    kinds |= {token: gguf.TokenType.CONTROL for token in (TURN, END, "<|endoftext|>")}
    kinds |= {token: gguf.TokenType.UNUSED for token in tokens if token.startswith("[PAD")}
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_name("tool caller")
    writer.add_file_type(1)
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index(END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, values in tensors(tokens):
        writer.add_tensor(name, values.astype(np.float16) if values.ndim == 2 else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

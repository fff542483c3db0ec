#!/usr/bin/env python3
"""Make the fixtures of crates/text for byte-level BPE and chat templates: the token ids that Hugging Face's tokenizers gives
for difficult texts, with a small synthetic vocabulary and with those of real models, and conversations rendered by Jinja.

usage: make_bpe_fixtures.py SMOLLM2.gguf QWEN.gguf [OUT]      OUT is crates/text/tests/fixtures by default
       make_bpe_fixtures.py --fuzz COUNT OUT.json SMOLLM2.gguf QWEN.gguf
needs: pip install tokenizers jinja2       (written with tokenizers 0.23 and jinja2 3.1)

The second form writes many random texts for INDRIK_TEST_BPE_FUZZ, a test of crates/text without a stored fixture.
"""
import json
import pathlib
import random
import struct
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
NFC = {"type": "NFC"}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def split(pattern):
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [step, byte_level(False)]}


# Pre-tokenizer, normalizer and ignore_merges of each family's tokenizer.json.
DIGITS = {"type": "Digits", "individual_digits": True}
KINDS = {
    "gpt-2": (byte_level(True), None, False),
    "smollm": ({"type": "Sequence", "pretokenizers": [DIGITS, byte_level(True)]}, None, False),
    "qwen2": (split(WORDS + r"\p{N}" + REST), NFC, False),
    "llama-bpe": (split(WORDS + r"\p{N}{1,3}" + REST), None, True),
}
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"]

TEXTS = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "  a  b   c    ",
    " " * 17 + "x" + " " * 33,
    "\t",
    "\t\tx\ty \t z",
    "\n",
    "\n\n\n",
    "x\n \n  y\n\n   \n\tz\n",
    "x \n",
    "x\r\ny\r\n\r\nz\r",
    " \n \r\n \t\n",
    "\u00a0\u2003\u3000x\u2028y\u0085z\u200b\u180e.",
    "\x0b\x0c\x1c\x1d\x1e\x1f\x00\x7f",
    "0",
    "1234567890",
    "1 22 333 4444 55555",
    "3.14159, 1e-9, 0x1F, v1.2.3, 10,000.00",
    "١٢٣٤ ४५६ Ⅻ ½ ² ①⑳ 〇一二 𝟙𝟚",
    "I'm you're he's we've they'll I'd don't",
    "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T",
    "'s 'S 'ſ 'Re 'vE 'lL 'K ' s ''s 'sss x'tx",
    "it’s — “quoted” … ‘x’",
    "你好，世界！今天天气很好。",
    "こんにちは世界。カタカナとひらがな、漢字ｶﾅ。",
    "안녕하세요 세계 각 한국어",
    "👋🌍 👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🇫🇷🇩🇪 ❤️ ☺︎ 1️⃣",
    "🦙" * 7,
    "e\u0301 é a\u030a å n\u0303\u0323 ạ̈ \u0301alone q\u0307\u0323",
    "\u1112\u1161\u11ab\u1100\u1173\u11af 한글",
    "\u212b \u2126 \u212a ﬁ \u0344 \u0958 \uf900",
    "नमस्ते दुनिया क्षत्रिय",
    "สวัสดีชาวโลก",
    "مرحبا بالعالم، كيف حالك؟ العَرَبِيَّة",
    "שלום עולם! שָׁלוֹם \u202bRTL\u202c \u200fx",
    "Привет, мир! Ёжик",
    "Ça va? Größe, naïve, İstanbul ıi ẞß ŒœÆæ",
    "def f(x: int) -> str:\n    \"\"\"Doc.\"\"\"\n    return f'{x!r:>10}'  # comment\n\n\nclass A:\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; }\r\n",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';",
    "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"\\n\\u00e9\"}}",
    "<div class=\"x\">&amp;</div><!-- -->",
    "http://example.org/a/b?c=d&e=%20#f user@example.org",
    "$x^2 + y_1 = \\frac{1}{2}$ ~~x~~ **b** `c` ```rust\nfn\n```",
    "!!!???...;;;:::---___===+++***///\\\\\\|||@@@###",
    "a" * 100,
    "ab" * 60,
    "-" * 80,
    "…" * 20,
    "The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX.",
    "camelCaseWord snake_case_word kebab-case-word SCREAMING_CASE",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|><|im_end|> <|im_end|>\n\n<|endoftext|>x",
    "<|im_end|>\u0338 <|im_en d|> <|im_end| <|IM_END|> <<|im_end|>>",
    "<|eot_id|><|end_of_text|><|eom_id|></s><eos>",
    "\ufeffBOM \ufffd \ufffe \uffff \U0010ffff \ue000",
    "zero\u200dwidth\u200cjoiners\u2060and\u00adhyphens",
    "x\u0000y",
    "<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n<tool_response>",
    "Ġthe ĊĠĠ Ġ",
    "The capital of France is Paris. La capitale de la France est Paris.",
]
PIECES = TEXTS + [" ", "  ", "\n", "\t", "\r\n", "'s", "'LL", "1", "12", "é", "e\u0301", "世", "🦙", "\u200d", "\u00a0", "."]


def strange(source):
    """A random text of such pieces, fragments of them, and characters from all of Unicode."""
    text = ""
    for _ in range(source.randrange(1, 9)):
        kind = source.randrange(4)
        if kind == 0:
            text += chr(source.choice([source.randrange(0x20, 0x3000), source.randrange(0xE000, 0x1FB00)]))
        else:
            piece = source.choice(PIECES)
            start = source.randrange(len(piece) + 1)
            text += piece[start : start + source.randrange(1, 12)]
    return text


def gguf(path):
    """The metadata of a GGUF file."""
    with open(path, "rb") as file:
        numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

        def number(kind):
            return struct.unpack("<" + kind, file.read(struct.calcsize(kind)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind == 9:
                element, count = number("I"), number("Q")
                return [value(element) for _ in range(count)]
            return number(numbers[kind])

        assert file.read(4) == b"GGUF"
        number("I"), number("Q")
        return {value(8): value(number("I")) for _ in range(number("Q"))}


def tokenizer(kind, vocab, merges, control, normalize=True):
    pre, normalizer, whole = KINDS[kind]
    plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    added = [dict(plain, id=vocab[name], content=name, special=special) for name, special in control.items()]
    file = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": normalizer if normalize else None, "pre_tokenizer": pre, "post_processor": None,
        "decoder": byte_level(True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": whole,
            "vocab": vocab, "merges": merges,
        },
    }
    return Tokenizer.from_str(json.dumps(file))


def ids(tokenizer, text):
    """Token ids with control tokens parsed, and with their names as plain text."""
    tokenizer.encode_special_tokens = False
    parsed = tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    return [parsed] if parsed == plain else [parsed, plain]


def own_vocabulary():
    """Trained on lines without pre-tokenisation, so that tokens cross every boundary of a pattern."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    special = [AddedToken(name, normalized=False, special=True) for name in CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=1400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=special,
        show_progress=False, max_token_length=9,
    )
    source = random.Random(1)
    lines = [text for text in TEXTS if "<|" not in text]
    lines += [strange(source).replace("<|", "") for _ in range(3000)]
    trained.train_from_iterator(lines, trainer)
    model = json.loads(trained.to_str())["model"]
    return model["vocab"], model["merges"]


def real(path):
    """The metadata, vocabulary and merges of a model, and its added tokens with a flag for control tokens."""
    data = gguf(path)
    tokens, types = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    vocab = {token: id for id, token in enumerate(tokens) if types[id] != 5}
    control = {token: kind == 3 for token, kind in zip(tokens, types) if kind in (3, 4)}
    merges = [merge.split(" ") for merge in data["tokenizer.ggml.merges"]]
    return data, vocab, merges, control


def conversations():
    user = lambda text: {"role": "user", "content": text}
    answer = lambda text: {"role": "assistant", "content": text}
    system = lambda text: {"role": "system", "content": text}
    return [
        [user("What is the capital of France?")],
        [system("Answer briefly."), user("Hi")],
        [system(""), user("Hi")],
        [user("Hi"), answer("Hello!"), user("  two\n lines \n")],
        [system("s"), user("a"), answer("b"), user("c"), answer("d")],
        [user("a"), system("later"), user("b")],
        [user("é 世界 🦙 {{ x }} {% y %} <b>&amp;'\"</b>")],
        [user(""), answer("")],
    ]


def rendered(data):
    """Jinja configured as in transformers: trimmed blocks, a sandbox."""
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    template = jinja.from_string(data["tokenizer.chat_template"])
    tokens = data["tokenizer.ggml.tokens"]
    names = {f"{name}_token": tokens[data[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos")}
    return [
        {"prompt": prompt, "text": template.render(messages=messages, add_generation_prompt=prompt, **names)}
        for messages in conversations()
        for prompt in (True, False)
    ]


def decoded(tokenizer, source, count):
    """Ids in random order, whose bytes are mostly invalid UTF-8."""
    size = tokenizer.get_vocab_size()
    lists = [[source.randrange(min(size, 700)) for _ in range(source.randrange(1, 12))] for _ in range(count)]
    return [[ids, tokenizer.decode(ids, skip_special_tokens=True)] for ids in lists]


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    short = lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text("{\n" + ",\n".join(f"{short(key)}:{short(part)}" for key, part in value.items()) + "\n}\n")
    print(path, path.stat().st_size, "bytes")


def vectors(tokenizer, texts):
    return [ids(tokenizer, text) for text in texts]


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--fuzz"]:
        source = random.Random(7)
        texts = [strange(source) for _ in range(int(arguments[1]))]
        vocab, merges = own_vocabulary()
        own = {kind: vectors(tokenizer(kind, vocab, merges, dict.fromkeys(CONTROL, True)), texts) for kind in KINDS}
        real_ids = {}
        for name, kind, path in zip(("smollm2", "qwen2.5"), ("smollm", "qwen2"), arguments[3:]):
            _, vocab, merges, control = real(path)
            real_ids[name] = vectors(tokenizer(kind, vocab, merges, control, False), texts)
        return write(pathlib.Path(arguments[2]), {"texts": texts, "own": own, "real": real_ids})

    out = pathlib.Path(arguments[2]) if len(arguments) > 2 else HERE.parent / "crates/text/tests/fixtures"
    source = random.Random(2)
    texts = TEXTS + [strange(source) for _ in range(60)]
    vocab, merges = own_vocabulary()
    own = {"texts": texts, "vocab": vocab, "merges": merges, "control": CONTROL, "kinds": {}}
    for kind, (pre, normalizer, whole) in KINDS.items():
        made = tokenizer(kind, vocab, merges, dict.fromkeys(CONTROL, True))
        own["kinds"][kind] = {
            "pre_tokenizer": pre, "normalizer": normalizer, "ignore_merges": whole, "ids": vectors(made, texts),
            # As from a GGUF file: llama.cpp, the reference for that format, does not normalise.
            "plain": vectors(tokenizer(kind, vocab, merges, dict.fromkeys(CONTROL, True), False), texts) if normalizer else None,
            "decoded": decoded(made, source, 40),
        }
    write(out / "bpe.json", own)
    for name, kind, path in zip(("smollm2", "qwen2.5"), ("smollm", "qwen2"), arguments):
        data, vocab, merges, control = real(path)
        assert data["tokenizer.ggml.pre"] == kind
        made = tokenizer(kind, vocab, merges, control, False)
        value = {
            "ids": vectors(made, texts), "decoded": decoded(made, source, 40),
            "conversations": conversations(), "rendered": rendered(data),
        }
        write(out / f"{name}.json", value)


if __name__ == "__main__":
    main()

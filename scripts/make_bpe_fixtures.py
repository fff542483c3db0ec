#!/usr/bin/env python3
"""Make the fixtures of crates/text for BPE and chat templates: the token ids that Hugging Face's tokenizers gives for
difficult texts, with small synthetic vocabularies and with those of real models, and conversations rendered by Jinja.

usage: make_bpe_fixtures.py [SMOLLM2.gguf QWEN.gguf [OUT]]      OUT is crates/text/tests/fixtures by default
       make_bpe_fixtures.py --fuzz COUNT OUT.json SMOLLM2.gguf QWEN.gguf
       make_bpe_fixtures.py --tekken OUT.json                   also needs: pip install mistral-common
needs: pip install tokenizers jinja2       (written with tokenizers 0.23 and jinja2 3.1)

The second form writes many random texts for INDRIK_TEST_BPE_FUZZ, a test of crates/text without a stored fixture. The
third writes Mistral's vocabulary and the ids of the texts for INDRIK_TEST_TEKKEN.
"""
import json
import pathlib
import random
import struct
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
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
    "tekken": (split(TEKKEN), None, True),
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


# Gemma 4's control tokens, in the order of ids.
GEMMA4_CONTROL = [
    "<pad>", "<eos>", "<bos>", "<unk>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
    "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>",
]
GEMMA4_TEXTS = [
    "<bos><|turn>user\nHi<turn|>\n<|turn>model\n",
    '<|channel>thought\nx<channel|><|tool_call>call:f{a:<|"|>b c<|"|>}<tool_call|>',
    "<|turn>\n\n<turn|> <|turn> <turn|>x <|turn <|TURN> <<turn|>>",
    "▁ ▁▁ a▁b a b",
    *("\n" * count + "x\n" for count in range(1, 20)),
    "\n \n\n  \n\n\n \r\n\r\n\n",
]
MAX_NEWLINES = 9


def gemma4(texts):
    """A vocabulary of characters with byte fallback, in Gemma 4's format, and the ids of the texts."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=900, limit_alphabet=150, show_progress=False, max_token_length=9)
    source = random.Random(4)
    lines = [line for text in texts + [strange(source) for _ in range(3000)] for line in text.split("\n") if "<" not in line]
    trained.train_from_iterator(lines, trainer)
    model = json.loads(trained.to_str())["model"]
    runs = ["\n" * count for count in range(1, MAX_NEWLINES + 1)]
    tokens = GEMMA4_CONTROL + [f"<0x{byte:02X}>" for byte in range(256)] + runs
    tokens += [token for token in sorted(model["vocab"], key=model["vocab"].get) if token != "\n"]
    merges = [[runs[left], runs[both - left - 1]] for both in range(1, MAX_NEWLINES) for left in range(both)]
    merges += model["merges"]
    vocab = {token: id for id, token in enumerate(tokens)}
    assert len(vocab) == len(tokens)
    plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    space = {"String": " "}
    file = {
        "version": "1.0", "truncation": None, "padding": None, "post_processor": None,
        "added_tokens": [dict(plain, id=vocab[name], content=name) for name in GEMMA4_CONTROL],
        "normalizer": {"type": "Replace", "pattern": space, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": False},
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": vocab, "merges": merges,
        },
    }
    return {"texts": texts, "file": file, "ids": vectors(Tokenizer.from_str(json.dumps(file)), texts)}


def tekken(texts):
    """Mistral's vocabulary as a GGUF has it, and the ids of the texts. Ids of control tokens come first."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = next(pathlib.Path(sys.modules["mistral_common"].__file__).parent.glob("data/tekken_240911.json"))
    made = Tekkenizer.from_file(str(path))
    letters = {byte: letter for letter, byte in byte_letters().items()}
    count = made.n_words
    special = made.num_special_tokens
    names = [made.id_to_piece(id) for id in range(special)]
    raw = [made.id_to_byte_piece(id) for id in range(special, count)]
    rank = {piece: id for id, piece in enumerate(raw)}
    merges = []
    for piece in raw:
        # The pair that merging by rank ends with.
        parts = [bytes([byte]) for byte in piece]
        while len(parts) > 2:
            pairs = [(rank.get(parts[at] + parts[at + 1], count), at) for at in range(len(parts) - 1)]
            best, at = min(pair for pair in pairs if pair[0] < rank[piece]) if any(p[0] < rank[piece] for p in pairs) else (None, None)
            if best is None:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            merges.append(parts)
    text = lambda piece: "".join(letters[byte] for byte in piece)
    return {
        "texts": texts, "tokens": names + [text(piece) for piece in raw], "control": special,
        "merges": [f"{text(left)} {text(right)}" for left, right in merges],
        "ids": [made.encode(text, bos=False, eos=False) for text in texts],
    }


def byte_letters():
    """GPT-2's printable character of each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


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
    if arguments[:1] == ["--tekken"]:
        source = random.Random(7)
        return write(pathlib.Path(arguments[1]), tekken(TEXTS + [strange(source) for _ in range(3000)]))
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
    write(out / "gemma4.json", gemma4(texts + GEMMA4_TEXTS))
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

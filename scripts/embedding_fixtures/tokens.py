"""WordPiece, and the special tokens around the texts of embedding models: ids of Hugging Face's tokenizers."""
import json
import random

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the", "cat", "sat", "on", "mat", "un", "##aff", "##able", "affable", "running", "run", "##ning", "##s", "##ing", "cafe", "naive",
    "hello", "world", ",", ".", "!", "?", "'", "-", "[", "]", "(", ")", "don", "t", "漢", "字", "ᄒ", "##ᅡ", "##ᆫ", "1", "##2", "##3",
    "привет", "##ик", "ß", "α", "ﬁ", "i", "##i",
]

TEXTS = [
    "", " ", "\t\n\r ", "The cat sat on the mat.", "unaffable", "UNAFFABLE affable", "running runs run", "Café naïve NAÏVE", "cafe\u0301",
    "hello,world!", "don't", "漢字", "the漢cat", "漢\u3000字", "한", "ПРИВЕТ приветик", "ẞ ß", "αΑ", "ﬁ", "İ ı", "123", "1 2 3",
    "[CLS] hello [SEP]", "[cls]", "[MASK]ing", "hello[PAD]world", "a\x00b hello\x00world", "hello\ufffdworld", "hello\u200dworld",
    "hello\u00adworld", "hel\u200blo", "\ufeffhello", "hello\x85world", "hello\x0bworld", "hello\u2028world", "hello\u00a0world",
    "hello\ue000world", "hello\u0378world", "🦀 hello", "hello🦀", "x" * 100, "x" * 101, "the" + "s" * 97, "the" + "s" * 98,
    "##ing", "the ##ing", "…hello—world…", "hello、world。", "«hello»", "hello\u0301\u0302\u0303", "\u0301", "é" * 60, "§ hello", "hello_world",
    "hello\\world", "hello|world", "$100", "a+b=c", "▁hello", "▁", "\U0002f800", "\U000e0001hello", "กขค", "नमस्ते", "عَرَبِي",
    "hello\U0001d54fworld", "ǅ ǆ", "ΟΔΟΣ", "Ω Ω", "hello\r\nworld\r\n", "t" * 5, "the,the", "--", "?!?",
]


def vocabulary(size=None):
    letters = list("abcdefghijklmnopqrstuvwxyz")
    names = SPECIAL + WORDS + [letter for letter in letters if letter not in WORDS]
    names += [f"##{letter}" for letter in "abcdehlnorstx"]
    names = list(dict.fromkeys(names))
    return names if size is None else (names + [f"[unused{number}]" for number in range(size)])[:size]


def word_piece(size=None, **settings):
    names = vocabulary(size)
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(**settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    cls, sep = vocab["[CLS]"], vocab["[SEP]"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", cls), ("[SEP]", sep)]
    )
    return tokenizer


def word_piece_gguf(writer, size):
    """As llama.cpp's converter writes it."""
    names = vocabulary(size)
    phantom = lambda name: name if name.startswith("[") and name.endswith("]") else name[2:] if name[:2] == "##" else "▁" + name
    writer.add_tokenizer_model("bert")
    writer.add_token_list([phantom(name) for name in names])
    writer.add_token_types([3 if name in SPECIAL else 1 for name in names])
    for key, name in (("unknown", "[UNK]"), ("bos", "[CLS]"), ("cls", "[CLS]"), ("eos", "[SEP]"), ("seperator", "[SEP]"), ("padding", "[PAD]")):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", names.index(name))


def random_texts(count):
    rng = random.Random(7)
    pools = ["abcdefghijklmnopqrst ", "the cat running hello ", "ÀÉîõüçñ éè", ".,!?'-[]()", "漢字한글привет", "\t\n \u00a0\u200b", "0123 "]
    return ["".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def byte_level(post):
    """A vocabulary of the letters that GPT-2's alphabet writes as they are, and Qwen's special tokens."""
    names = list("abcdefghijklmnopqrstuvwxyz") + ["Ġ", "<|endoftext|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names[-2:]])
    end = names.index("<|endoftext|>")
    template = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", end)])
    steps = [processors.ByteLevel(trim_offsets=False), template]
    tokenizer.post_processor = processors.Sequence(steps) if post else processors.ByteLevel(trim_offsets=False)
    return tokenizer


def gemma():
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "▁"] + list("abcdefghijklmnopqrstuvwxyz")
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names[:4]])
    specials = [("<bos>", 2), ("<eos>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=specials)
    return tokenizer


def make(path):
    texts = TEXTS + random_texts(150)
    kinds = {
        "uncased": {}, "cased": dict(lowercase=False), "accents": dict(strip_accents=False),
        "bare": dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False),
    }
    ids = {}
    for kind, settings in kinds.items():
        tokenizer = word_piece(**settings)
        ids[kind] = dict(normalizer=json.loads(tokenizer.to_str())["normalizer"], ids=[tokenizer.encode(text).ids for text in texts])
    templates = []
    for tokenizer, config in ((byte_level(True), {}), (gemma(), {}), (byte_level(False), dict(eos_token="<|endoftext|>", add_eos_token=True))):
        shown = ["", "hello", "a b c"]
        expected = [tokenizer.encode(text).ids for text in shown]
        if config:
            end = tokenizer.token_to_id("<|endoftext|>")
            expected = [ids + [end] for ids in expected]
        templates.append(dict(tokenizer=json.loads(tokenizer.to_str()), config=config, texts=shown, ids=expected))
    fixture = dict(vocabulary=vocabulary(), texts=texts, kinds=ids, tokenizer=json.loads(word_piece().to_str()), templates=templates)
    path.write_text(json.dumps(fixture, ensure_ascii=True) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes, {len(texts)} texts")

"""Small byte-level vocabularies modelled on SmolLM2, Llama 3, Qwen 2 and Mistral's Tekken, for tokenizer.json and GGUF files."""
import json

import gguf
import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers, processors

TEXT = "the cat and user Z were\n\n  on 1234 stones, singing… It's née?"
MERGES = [
    ("Ġ", "t"), ("h", "e"), ("i", "n"), ("a", "n"), ("r", "e"), ("Ġ", "a"), ("o", "n"), ("e", "r"), ("Ġt", "he"),
    ("Ġ", "w"), ("o", "u"), ("s", "t"), ("Ġ", "s"), ("in", "g"), ("an", "d"), ("Ġ", "in"), ("o", "r"), ("Ġ", "c"),
    ("a", "t"), ("Ġc", "at"), ("u", "s"), ("us", "er"), ("Ċ", "Ċ"),
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
INSTRUCTIONS = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] }}</s>"
    "{% elif message['role'] == 'system' %}[SYSTEM_PROMPT]{{ message['content'] }}[/SYSTEM_PROMPT]"
    "{% else %}[INST]{{ message['content'] }}[/INST]{% endif %}{% endfor %}"
)
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words are also divided where a lower-case letter is followed by an upper-case one.
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def letters():
    """GPT-2's character for each byte, in the order of its vocabulary: printable bytes first."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in prints] + [chr(0x100 + n) for n in range(256 - len(prints))]


class Vocabulary:
    """`pre` is llama.cpp's name of the pre-tokeniser."""

    def __init__(self, pre, special, bos, eos, template, first=False, whole=(), padding=0):
        plain = letters() + [left + right for left, right in MERGES] + list(whole)
        self.pre, self.special, self.bos, self.eos, self.template = pre, special, bos, eos, template
        self.tokens = special + plain if first else plain + special
        self.unused = [f"[PAD{len(self.tokens) + n}]" for n in range(padding)]
        self.tokens += self.unused
        self.begins = pre in ("llama-bpe", "tekken")  # prompts start with a BOS token
        assert len(set(self.tokens)) == len(self.tokens)
        readable = set("abcdefghijklmnopqrstuvwxyz") | set(plain[256:])
        self.plain = [number for number, token in enumerate(self.tokens) if token in readable]

    def number(self, token):
        return self.tokens.index(token)

    def tokenizer(self):
        words = {"llama-bpe": WORDS % "{1,3}", "qwen2": WORDS % "", "tekken": TEKKEN_WORDS}
        used = self.tokens[: len(self.tokens) - len(self.unused)]
        vocab = {token: number for number, token in enumerate(used) if token not in self.special}
        if self.special == used[: len(self.special)]:
            vocab |= {token: number for number, token in enumerate(self.special)}
        model = tokenizers.models.BPE(vocab, MERGES, ignore_merges=self.pre in ("llama-bpe", "tekken"))
        tokenizer = tokenizers.Tokenizer(model)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pre == "smollm")
        if self.pre == "smollm":
            cut = pre_tokenizers.Digits(individual_digits=True)
        else:
            cut = pre_tokenizers.Split(Regex(words[self.pre]), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, byte_level])
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        if self.pre == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        if self.begins:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{self.bos} $A", special_tokens=[(self.bos, self.number(self.bos))]
            )
        tokenizer.add_special_tokens([tokenizers.AddedToken(t, normalized=False, special=True) for t in self.special])
        assert all(tokenizer.token_to_id(token) == number for number, token in enumerate(used))
        return tokenizer

    def save(self, folder):
        self.tokenizer().save(str(folder / "tokenizer.json"))
        config = dict(
            bos_token=self.bos, eos_token=self.eos, add_bos_token=self.begins, chat_template=self.template,
            clean_up_tokenization_spaces=False,
        )
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")

    def write(self, writer):
        kinds = gguf.TokenType
        kind = lambda t: kinds.CONTROL if t in self.special else kinds.UNUSED if t in self.unused else kinds.NORMAL
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types([kind(token) for token in self.tokens])
        writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
        if self.bos:
            writer.add_bos_token_id(self.number(self.bos))
        writer.add_eos_token_id(self.number(self.eos))
        writer.add_add_bos_token(self.begins)
        writer.add_chat_template(self.template)


IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADER = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    *(f"<|reserved_special_token_{n}|>" for n in range(3)),
]
# Cooperative matrices need rows in multiples of four, hence a few extra control tokens.
SMOLLM = Vocabulary("smollm", [*IM, "<repo_name>", "<file_sep>"], "<|im_start|>", "<|im_end|>", CHATML, first=True)
LLAMA3 = Vocabulary("llama-bpe", HEADER, "<|begin_of_text|>", "<|eot_id|>", HEADERS, whole=["Ġsinging"])
# The embedding matrix has more rows than there are tokens.
QWEN2 = Vocabulary("qwen2", IM, None, "<|im_end|>", CHATML, padding=6)
INSTRUCTION = [
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[THINK]",
    "[/THINK]",
]
TEKKEN = Vocabulary("tekken", INSTRUCTION, "<s>", "</s>", INSTRUCTIONS, first=True)

"""The vectors of the published all-MiniLM-L6-v2, by sentence-transformers, for texts of many kinds."""
import json
import random

import numpy as np
from sentence_transformers import SentenceTransformer

SUBJECTS = ["the committee", "a grey heron", "my neighbour", "der Zug", "la bibliothèque", "an old compiler", "Каждый день", "東京の天気", "the GPU"]
VERBS = ["published", "ignored", "was waiting for", "kompiliert", "recommande", "quietly replaced", "never reached", "は"]
OBJECTS = ["a report on tides", "three spare keys", "l'été dernier", "42 unit tests", "the last paragraph", "晴れです", "über alle Berge", "½ cup of flour"]
ENDS = [".", "!", "?", "…", " – again.", " (see §3).", " :-)", " 🙂", ""]
FIXED = [
    "", " ", "a", "?", "[brackets] and {braces}", "𝕏𝕐𝕫", "กกก", "x" * 300, "supercalifragilisticexpialidocious",
    "fn main() { println!(\"{}\", 1 + 1); }", "https://example.org/a?b=c&d=e#f", "SELECT * FROM t WHERE a = 'b';", "1234567890 " * 5,
    "What is the capital of France?", "Paris is the capital of France.", "naïve café façade", "NAIVE CAFE FACADE", "tab\tand\nnewline",
]


def texts():
    rng = random.Random(11)
    made = list(FIXED)
    while len(made) < 196:
        sentences = []
        for _ in range(rng.choice([1, 1, 1, 1, 1, 2])):
            sentences.append(f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}{rng.choice(ENDS)}")
        made.append(" ".join(sentences))
    # Around and beyond the maximum length.
    while len(made) < 200:
        words = [40, 120, 254, 300][len(made) - 196]
        made.append(" ".join(rng.choice(["tide", "key", "run", "stone", "light", "on"]) for _ in range(words)))
    return made


def make(model, out):
    encoder = SentenceTransformer(str(model), device="cpu").double()
    lines = texts()
    vectors = np.array([encoder.encode([text], normalize_embeddings=True)[0] for text in lines])
    out.mkdir(parents=True, exist_ok=True)
    (out / "minilm_texts.json").write_text(json.dumps(lines, ensure_ascii=True, indent=0) + "\n")
    (out / "minilm_vectors.f16").write_bytes(vectors.astype("<f2").tobytes())
    print(f"{len(lines)} texts, {vectors.shape}")

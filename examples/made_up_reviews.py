"""Made-up reviews as token ids, for the examples with text.

    python examples/made_up_reviews.py examples/text_lora/rows.npz

Each review has 12 words. Good reviews use more of the kind words, bad ones more of the harsh words.
A text of yours goes through a public tokeniser in the same way: one row per person, a fixed number
of whole numbers, shorter texts filled up with 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

KIND = ["good", "great", "lovely", "fine", "warm", "clean", "quick", "happy", "fresh", "bright"]
HARSH = ["bad", "awful", "poor", "cold", "dirty", "slow", "late", "sad", "stale", "dull"]
OTHER = [
    "the",
    "a",
    "room",
    "food",
    "staff",
    "was",
    "very",
    "and",
    "in",
    "we",
    "our",
    "day",
    "bread",
    "tea",
    "bus",
    "street",
]
VOCABULARY = ["<empty>", *KIND, *HARSH, *OTHER]  # public
LENGTH = 12


def reviews(rows: int = 1500, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Return texts and labels: 1 for a good review."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    texts = []
    for label in labels:
        mine, others = (KIND, HARSH) if label else (HARSH, KIND)
        pools = generator.choice(3, size=LENGTH, p=[0.4, 0.05, 0.55])
        words = [generator.choice((mine, others, OTHER)[pool]) for pool in pools]
        texts.append(" ".join(words))
    return texts, labels


def tokens(texts: list[str]) -> np.ndarray:
    """Return token ids, LENGTH per text; unknown words are left out."""
    known = {word: number for number, word in enumerate(VOCABULARY)}
    found = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in enumerate(texts):
        numbers = [known[word] for word in text.lower().split() if word in known][:LENGTH]
        found[row, : len(numbers)] = numbers
    return found


def write(path: Path, rows: int = 1500) -> None:
    """Write token ids and labels to an .npz file."""
    texts, labels = reviews(rows)
    np.savez(path, X=tokens(texts), y=labels)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

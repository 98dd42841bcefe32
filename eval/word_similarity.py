"""Similarity of words by the text tower, beside people's: SimLex-999 (ALIGN section 8, table 12)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from altalign.errors import UnreadableError
from altalign.eval.correlation import spearman
from altalign.eval.image_sources import text_lines
from altalign.eval.outcomes import Outcomes, Result

_COLUMNS = ("word1", "word2", "POS", "SimLex999", "concQ", "SimAssoc333")  # of the file as its authors give it
_PARTS = {"A": "adjectives", "N": "nouns", "V": "verbs"}


@dataclass(frozen=True)
class WordPair:
    """Two words, how alike people find them, and the subsets that they are in."""

    first: str
    second: str
    rating: float
    subsets: tuple[str, ...] = ()


def word_similarity(
    pairs: Sequence[WordPair], encode_word: Callable[[list[str]], Tensor], *, batch: int = 256
) -> Result:
    """Cosines of the words of each pair, beside ratings; the rows are the pairs.

    Args:
        pairs: at least two.
        encode_word: vectors (n, width) of n words, of any length: ALIGN takes [CLS] before the projection.
        batch: words that are encoded at a time.
    """
    words = sorted({word for pair in pairs for word in (pair.first, pair.second)})
    place = {word: number for number, word in enumerate(words)}
    with torch.no_grad():
        encoded = [encode_word(words[first : first + batch]) for first in range(0, len(words), batch)]
    vectors = functional.normalize(torch.cat(encoded).double(), dim=1).cpu()
    first, second = (
        vectors[[place[word] for word in side]]
        for side in ([pair.first for pair in pairs], [pair.second for pair in pairs])
    )
    outcomes = {
        "cosine": (first * second).sum(1).numpy(),
        "rating": np.array([pair.rating for pair in pairs]),
        **{
            f"in_{name}": np.array([name in pair.subsets for pair in pairs])
            for name in sorted({name for pair in pairs for name in pair.subsets})
        },
    }
    facts = {"pairs": len(pairs)}
    facts |= {f"pairs_{name.removeprefix('in_')}": int(of.sum()) for name, of in outcomes.items() if name[:3] == "in_"}
    return Result(measured(outcomes), facts, outcomes, range(len(pairs)))


def measured(outcomes: Outcomes) -> dict[str, float]:
    """Spearman's correlation of cosines and ratings, times 100: of all pairs, and of each subset."""
    cosines, ratings = (torch.from_numpy(outcomes[name]) for name in ("cosine", "rating"))
    found = {"spearman": 100 * spearman(cosines, ratings)}
    for name, of in outcomes.items():
        if name.startswith("in_"):
            found[f"spearman_{name.removeprefix('in_')}"] = 100 * spearman(cosines[of], ratings[of])
    return found


def read_word_pairs(path: str) -> list[WordPair]:
    """The pairs of SimLex-999 as its authors give it, with subsets; or of lines WORD, WORD, RATING without.

    Fields are divided by tabs, and lines that begin with # are left out. Raises UnreadableError: a line is neither.
    """
    lines = [line.split("\t") for line in text_lines(path) if line.strip() and not line.startswith("#")]
    header = lines[0] if lines and set(_COLUMNS) <= set(lines[0]) else None
    try:
        pairs = (
            [_pair(dict(zip(header, line, strict=True))) for line in lines[1:]]
            if header
            else [WordPair(first, second, float(rating)) for first, second, rating in lines]
        )
    except ValueError as error:
        raise UnreadableError(
            f"{path}: neither SimLex-999.txt nor lines of word, word, rating with tabs between ({error}); give one of "
            "both"
        ) from None
    if len(pairs) < 2:
        raise UnreadableError(f"{path}: {len(pairs)} pairs of words, and a correlation wants two; give a whole file")
    return pairs


def _pair(row: Mapping[str, str]) -> WordPair:
    hard = ("hard",) if row["SimAssoc333"] == "1" else ()  # the 333 pairs that are the most associated
    subsets = (_PARTS[row["POS"]], f"concreteness_q{row['concQ']}", *hard)
    return WordPair(row["word1"], row["word2"], float(row["SimLex999"]), subsets)

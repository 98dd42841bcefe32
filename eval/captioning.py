"""Captions that a model writes of images, beside those of people: BLEU-4 and CIDEr (NLIP, table 3).

Both by the definitions of pycocoevalcap, without Java. BLEU is Papineni et al.'s over the whole set, with the length of
the nearest reference; CIDEr is CIDEr-D (Vedantam et al., arXiv 1411.5726), times 10. Words are those of the Penn
Treebank's tokenizer as far as captions have them: lower case, contractions apart, no punctuation.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from altalign.eval.encoded import Features
from altalign.eval.outcomes import Outcomes, Result
from altalign.eval.sets import ImageSet

ORDERS = 4  # n-grams of 1 to 4 words
_TINY, _SMALL = 1e-15, 1e-9  # pycocoevalcap's: a set without a match is no 0/0
_SIGMA, _SCALE = 6.0, 10.0  # of CIDEr-D's penalty of length; what it is multiplied with

_APART = (  # what the Penn Treebank writes apart; brackets get names, which pycocoevalcap keeps as words
    (re.compile(r"(?<=\w)(n't|'(?:s|m|d|ll|re|ve))\b"), r" \1"),
    (re.compile(r"\b(can)(not)\b|\b(gon|wan)(na)\b"), r"\1\3 \2\4"),
    (re.compile(r"\("), " -lrb- "),
    (re.compile(r"\)"), " -rrb- "),
)
_WORD = re.compile(r"-[lr]rb-|n't|'(?:s|m|d|ll|re|ve)\b|(?:[^\W\d_]\.){2,}|[&$#@%]|[^\W_]+(?:[-'.,/&_:][^\W_]+)*")

Gram = tuple[str, ...]


def captioning(pairs: ImageSet, features: Features) -> Result:
    """Write a caption of each image, and compare it with the image's own. Raises as `Features.captions_of`."""
    images, captions = pairs.images, features.captions_of(pairs.images)
    rows = sorted(captions)
    written = [words_of(captions[row]) for row in rows]
    references = [[words_of(caption) for caption in pairs.captions[row]] for row in rows]
    counts = [bleu_counts(own, others) for own, others in zip(written, references, strict=True)]
    outcomes = {name: np.array([one[name] for one in counts], np.int64) for name in counts[0]}
    outcomes["cider"] = np.array(cider(written, references))
    outcomes["caption"] = np.array([captions[row] for row in rows], object)
    facts = {"images": len(rows), "references": sum(map(len, references))}
    left_out = images.left_out([row for row in range(len(images)) if row not in captions], pairs.left_out)
    return Result(images, rows, outcomes, measured(outcomes), facts, left_out)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """`bleu_4` and `cider` in percent, as papers give them; how rare an n-gram is, is that of the whole set."""
    sums = {name: float(column.sum()) for name, column in outcomes.items() if name != "caption"}
    return {"bleu_4": 100 * bleu_of(sums), "cider": 100 * float(outcomes["cider"].mean())}


# The metrics ----------------------------------------------------------------------------------------------------------


def words_of(caption: str) -> list[str]:
    """The words of a caption, by pycocoevalcap's tokenizer."""
    lowered = caption.lower().replace("’", "'")
    for pattern, apart in _APART:
        lowered = pattern.sub(apart, lowered)
    return _WORD.findall(lowered)


def _grams(words: Sequence[str]) -> Counter[Gram]:
    return Counter(
        tuple(words[first : first + order]) for order in range(1, ORDERS + 1) for first in range(len(words) - order + 1)
    )


def bleu_counts(own: Sequence[str], others: Sequence[Sequence[str]]) -> dict[str, int]:
    """What BLEU-4 sums up over captions: right n-grams and all, by order, and lengths."""
    most = Counter[Gram]()
    for other in others:
        most |= _grams(other)
    right = [0] * ORDERS
    for gram, count in _grams(own).items():
        right[len(gram) - 1] += min(count, most[gram])
    return {
        **{f"right_{order + 1}": count for order, count in enumerate(right)},
        **{f"asked_{order + 1}": max(0, len(own) - order) for order in range(ORDERS)},
        "words": len(own),
        "reference_words": min((abs(len(other) - len(own)), len(other)) for other in others)[1],
    }


def bleu_of(sums: Mapping[str, float]) -> float:
    """BLEU-4, from 0 to 1, of the sums of `bleu_counts`."""
    orders = range(1, ORDERS + 1)
    product = math.prod((sums[f"right_{order}"] + _TINY) / (sums[f"asked_{order}"] + _SMALL) for order in orders)
    ratio = (sums["words"] + _TINY) / (sums["reference_words"] + _SMALL)
    return product ** (1 / ORDERS) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0)


def cider(written: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """CIDEr-D of each caption; the set's is their mean. How rare an n-gram is, is counted over the references."""
    of_references = [[_grams(other) for other in others] for others in references]
    seen = Counter(gram for others in of_references for gram in set().union(*others))
    images = math.log(len(references))

    def weighted(counts: Mapping[Gram, int]) -> tuple[dict[Gram, float], list[float], int]:
        """Weights of n-grams, their length by order, and how many pairs of words there are."""
        weights = {gram: count * (images - math.log(max(1, seen[gram]))) for gram, count in counts.items()}
        squares = [0.0] * ORDERS
        for gram, weight in weights.items():
            squares[len(gram) - 1] += weight**2
        return weights, list(map(math.sqrt, squares)), sum(n for gram, n in counts.items() if len(gram) == 2)

    scores = []
    for own, others in zip(written, of_references, strict=True):
        weights, norms, length = weighted(_grams(own))
        total = 0.0
        for other in others:
            of_other, norms_of_other, length_of_other = weighted(other)
            products = [0.0] * ORDERS
            for gram, weight in weights.items():
                own_weight = of_other.get(gram, 0.0)
                products[len(gram) - 1] += min(weight, own_weight) * own_weight
            penalty = math.exp(-((length - length_of_other) ** 2) / (2 * _SIGMA**2))
            total += penalty * sum(
                product / (a * b) if a * b else product
                for product, a, b in zip(products, norms, norms_of_other, strict=True)
            )
        scores.append(_SCALE * total / (ORDERS * len(others)))
    return scores

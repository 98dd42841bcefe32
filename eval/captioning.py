"""Captions that a model writes of images, beside those of people: BLEU-4 and CIDEr (NLIP, table 3)."""

import numpy as np

from altalign.eval.caption_metrics import bleu_counts, bleu_of, cider, words_of
from altalign.eval.encoded import Features
from altalign.eval.outcomes import Example, Outcomes, Result, shown
from altalign.eval.sets import ImageSet

_EXAMPLES = 8


def captioning(of: ImageSet, features: Features) -> Result:
    """Write a caption of each image, and compare it with the image's own.

    Raises UsageError: the model writes none; UnreadableError: no image can be decoded.
    """
    images = of.files
    found = features.captions_of(images)
    rows = sorted(found)
    written = [words_of(found[row]) for row in rows]
    references = [[words_of(caption) for caption in of.images[row].captions] for row in rows]
    counts = [bleu_counts(own, others) for own, others in zip(written, references, strict=True)]
    outcomes = {name: np.array([one[name] for one in counts], np.int64) for name in counts[0]}
    said = np.array([found[row] for row in rows], object)
    outcomes |= {"cider": np.array(cider(written, references)), "caption": said}
    names = [images.names[row] for row in rows]
    examples = [
        Example(rows[place], (found[rows[place]], *of.images[rows[place]].captions), 0)
        for place in shown(names, [0] * len(names), at_most=2 * _EXAMPLES)
    ]
    facts = {"images": len(rows), "references": sum(map(len, references))}
    left_out = images.left_out([row for row in range(len(images)) if row not in found], of.left_out)
    return Result(measured(outcomes), facts, outcomes, rows, left_out, examples)


def measured(outcomes: Outcomes) -> dict[str, float]:
    """`bleu_4` and `cider` in percent, as papers give them; how rare an n-gram is, is that of the whole set."""
    sums = {name: float(column.sum()) for name, column in outcomes.items() if name != "caption"}
    return {"bleu_4": 100 * bleu_of(sums), "cider": 100 * float(outcomes["cider"].mean())}

"""Soft-cap sampling (FLYT, arXiv 2503.08805): pairs of large weights are drawn often, and less often each time."""

import numpy as np
import numpy.typing as npt

from altalign import terminal
from altalign.train.data.random_bits import ALL_BITS, GOLDEN, Words, keyed, mix

_BATCHES = 1_280  # 128 M draws, 100,000 at a time, are the authors' defaults
_NOISE = 13  # what the random numbers are for


def counts(weights: npt.NDArray[np.float64], keys: Words, *, penalty: float) -> npt.NDArray[np.float64]:
    """How often each of n pairs is drawn in n draws: float64[n], of the logarithms of weights, the scores.

    As `soft_cap_sampling` of the authors' examples.ipynb has it (github.com/formll/FLYT): a batch is drawn without
    replacement by the softmax of the scores, the penalty is taken from the scores of what was drawn, and so on.
    `keys` are uint64[n, 2], of which and of the batch the draws are a function: the pairs of the largest sums of score
    and Gumbel noise are such a batch. It takes about 25 microseconds a pair.
    """
    n = len(weights)
    scores, drawn, left = np.log(weights), np.zeros(n), n
    states = keyed(_NOISE, keys[:, 0], keys[:, 1])
    with terminal.progress_bar("drawing", n, "pairs") as advance:
        for batch in range(n):
            size = min(max(1, n // _BATCHES), left)
            if not size:
                break
            bits = mix(states + np.uint64(GOLDEN * batch & ALL_BITS))  # SplitMix64 of each pair
            uniform = ((bits >> np.uint64(12)) + 0.5) / 2.0**52  # (0, 1)
            taken = np.argpartition(np.log(-np.log(uniform)) - scores, size - 1)[:size]
            scores[taken] -= penalty
            drawn[taken] += 1
            left -= size
            advance(size)
    return drawn

"""How noisy the pairs of a run are: the groups of their losses, and the cleanest and noisiest of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from altalign.train.data import noise_losses
from altalign.train.data.noise_losses import Measured
from altalign.train.data.samples import Samples
from altalign.train.exchange.encoders import decoder_of
from altalign.train.report.samples import Decode, Seen, gallery
from altalign.train.settings.training import TrainConfig

PAIRS = 12  # of each gallery


@dataclass(frozen=True)
class NoiseView:
    """The section of the report."""

    pairs: int  # that were measured
    noisy: int  # of them, more likely noisy than clean
    is_one: bool  # whether the losses do not fall into two groups
    groups: list[tuple[float, float, float]]  # share, mean and deviation of each, the lower first
    cleanest: list[Seen]  # the pairs with the least losses
    noisiest: list[Seen]  # those with the greatest eps, the greatest loss first


def of_run(config: TrainConfig, samples: Samples) -> NoiseView | None:
    """The section of a run whose noise was measured; None where it was not."""
    measured = noise_losses.known(config, samples)
    if measured is None:
        return None
    mixture, decode = measured.mixture, decoder_of(config)
    pairs = int((~np.isnan(measured.losses)).sum())
    by_noise = np.lexsort((-np.nan_to_num(measured.losses), -measured.eps))
    by_loss = np.argsort(measured.losses, kind="stable")  # NaN are last
    return NoiseView(
        pairs=pairs,
        noisy=int((measured.eps > 0.5).sum()),
        is_one=mixture.is_one,
        groups=list(zip(mixture.shares, mixture.means, mixture.deviations, strict=True)),
        cleanest=_judged(samples, decode, measured, by_loss[: min(PAIRS, pairs)].tolist()),
        noisiest=[] if mixture.is_one else _judged(samples, decode, measured, by_noise[:PAIRS].tolist()),
    )


def _judged(samples: Samples, decode: Decode, measured: Measured, places: Sequence[int]) -> list[Seen]:
    """Pairs at these places of what was measured, with their pictures."""
    notes = [f"eps {measured.eps[place]:.3f}, loss {measured.losses[place]:.3g}" for place in places]
    numbers = measured.numbers[list(places)].tolist()
    return gallery(samples, decode, [(number, note, "") for number, note in zip(numbers, notes, strict=True)])

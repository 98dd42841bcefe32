"""How noisy pairs are held for (NLIP, equations 7 and 8): a mixture of losses, and what is kept of it.

`altalign nlip noise` leaves `noise/losses.parquet` and `noise/noise.json` in the folder of a training.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import AltalignError
from altalign.train.data.by_key import Keys, in_order, names_of
from altalign.train.data.samples import Samples
from altalign.train.run import training_folder
from altalign.train.settings.nlip import NoiseSettings
from altalign.train.settings.training import TrainConfig

FILE = "noise/losses.parquet"  # in the folder of a training run
# of the pair, as curation gave it; contrastive, of both directions averaged (null where the image cannot be decoded);
# and the probability that it is noisy (null likewise)
LOSSES = pa.schema([("key", pa.string()), ("loss", pa.float32()), ("eps", pa.float32())])
# of EM, which has converged where a step moves no posterior further; with 40 % of the pairs 1.5 deviations from the
# others that took 15,000 steps, with 3 deviations 140
_STEPS_AT_MOST, _TOLERANCE = 100_000, 1e-6
_DECIMALS = 3  # of losses in units of their deviation, by which EM takes equal ones together: some thousand values
_SMALLEST_VARIANCE = 1e-6  # of the variance of all losses: added to those of the groups

Losses = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]
Two = tuple[float, float]


@dataclass(frozen=True)
class Mixture:
    """The lower and the higher group of losses: shares of the pairs, means and standard deviations, two each.

    `is_one` says that the losses do not fall into two groups, and no pair is held for noisy; `clean_below_lower_mean`
    is the setting.
    """

    shares: Two
    means: Two
    deviations: Two
    is_one: bool = False
    clean_below_lower_mean: bool = True

    def noise(self, losses: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """The probability of each loss (n,) to be of the group with the higher mean, from 0 to 1 (equation 8).

        Where the higher group is the wider one, its density is the greater on both ends, and the pairs with the least
        losses are held for noisy, unless those below the lower mean are clean.
        """
        if self.is_one:
            return np.zeros(len(losses))
        low, high = _densities(losses, *map(np.array, (self.shares, self.means, self.deviations)))
        posterior = np.exp(high - np.logaddexp(low, high))
        return np.where(losses < self.means[0], 0.0, posterior) if self.clean_below_lower_mean else posterior


class Measured(NamedTuple):
    """Pairs in the order of their keys, the loss of each (NaN: undecodable) and its eps, and the mixture."""

    numbers: npt.NDArray[np.int64]  # in `Samples`
    losses: Losses
    eps: npt.NDArray[np.float32]
    mixture: Mixture


def table_of(config: TrainConfig) -> str:
    """The table of losses of a training."""
    return training_folder.path(config, *FILE.split("/"))


def mark_of(config: TrainConfig) -> str:
    """The file that says of which checkpoint and pairs they are, with the mixture."""
    return training_folder.path(config, "noise", "noise.json")


def known(config: TrainConfig, samples: Samples) -> Measured | None:
    """What was measured of a run, from its files; None where nothing was, or of other pairs."""
    facts = storage.read_json(mark_of(config))
    if not facts or not storage.exists(table_of(config)):
        return None
    keys, numbers = in_order(samples)
    if facts["asked"]["keys"] != sha256(keys.tobytes()).hexdigest():
        return None
    table = pq.read_table(pa.BufferReader(storage.read_bytes(table_of(config))))
    losses, eps = (np.asarray(table[name].to_numpy(), np.float32) for name in ("loss", "eps"))
    return Measured(numbers, losses, np.nan_to_num(eps), Mixture(**facts["mixture"]))


def write(path: str, keys: Keys, losses: Losses, eps: npt.NDArray[np.float32]) -> None:
    """Write the table, in the order given; a loss that is no number becomes null, with its eps."""
    columns = [pa.array(names_of(keys)), *(pa.array(values, mask=np.isnan(losses)) for values in (losses, eps))]
    with storage.write(path) as file:
        pq.write_table(pa.Table.from_arrays(columns, schema=LOSSES), file)


def fitted(losses: npt.NDArray[np.floating], settings: NoiseSettings) -> Mixture:
    """The mixture of losses (n,) that EM converges to from the halves below and above the median: no random start.

    Raises AltalignError: a loss is no number, or there are fewer than two.
    """
    x = np.asarray(losses, np.float64)
    if len(x) < 2:
        raise AltalignError(f"noise of pairs: {len(x)} losses, and a mixture is of two at least; train on more pairs")
    if not np.isfinite(x).all():
        raise AltalignError(
            f"noise of pairs: {np.count_nonzero(~np.isfinite(x)):,} of {len(x):,} losses are no numbers; what is wrong "
            "with the checkpoint?"
        )
    if np.ptp(x) == 0:
        return Mixture((1.0, 0.0), (float(x[0]), float(x[0])), (1.0, 1.0), is_one=True)
    centre, scale = float(x.mean()), float(x.std())
    values, counts = np.unique(((x - centre) / scale).round(_DECIMALS), return_counts=True)
    shares, means, deviations, log_likelihood = _converged(values, counts / len(x))
    is_one = bool(means[1] - means[0] < settings.means_apart_at_least * deviations.min())
    if settings.one_group_by_bic:  # one Gaussian, of mean 0 and deviation 1, has 2 parameters, two have 5
        of_one, of_two = np.log(2 * np.pi) + 1, -2 * log_likelihood
        is_one |= bool(len(x) * (of_one - of_two) <= 3 * np.log(len(x)))
    pairs = [(float(low), float(high)) for low, high in (shares, means * scale + centre, deviations * scale)]
    return Mixture(*pairs, is_one=is_one, clean_below_lower_mean=settings.clean_below_lower_mean)


def _converged(values: Values, weights: Values) -> tuple[Values, Values, Values, float]:
    """Shares, means and deviations (2,), the lower mean first, and the mean log-likelihood; weights (n,) sum to 1."""
    is_above = values > values[np.searchsorted(weights.cumsum(), 0.5)]
    if not is_above.any():  # more than half are equal, and the greatest
        is_above[-1] = True
    posterior, steps = np.stack([~is_above, is_above]).astype(float), 0
    while True:
        of_groups = posterior * weights
        shares = of_groups.sum(1) + 1e-15  # a group may be empty
        means = of_groups @ values / shares
        variances = (of_groups * (values - means[:, None]) ** 2).sum(1) / shares + _SMALLEST_VARIANCE
        densities = _densities(values, shares, means, np.sqrt(variances))
        of_all, before = np.logaddexp(*densities), posterior
        posterior = np.exp(densities - of_all)
        moved, steps = np.abs(posterior - before).max(), steps + 1
        if moved < _TOLERANCE or steps == _STEPS_AT_MOST:
            break
    order = np.argsort(means, kind="stable")
    return shares[order], means[order], np.sqrt(variances)[order], float(weights @ of_all)


def _densities(x: npt.NDArray[np.floating], shares: Values, means: Values, deviations: Values) -> Values:
    """Logarithms of the density of each of two groups at x (n,), times its share: (2, n)."""
    apart = (np.asarray(x, np.float64) - means[:, None]) / deviations[:, None]
    return (np.log(shares) - np.log(deviations) - 0.5 * np.log(2 * np.pi))[:, None] - 0.5 * apart**2

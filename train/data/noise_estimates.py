"""How noisy pairs are held for (NLIP, equations 7 and 8): a mixture of losses, and what is kept of it.

`altalign nlip noise` leaves `noise/losses.parquet` and `noise/noise.json` in the folder of a training.
"""

import warnings
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import AltalignError, UsageError, bring
from altalign.train.data.by_key import Keys, in_order, names_of
from altalign.train.data.samples import Samples
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig

FILE = "noise/losses.parquet"  # in the folder of a training run
# of the pair, as curation gave it; contrastive, of both directions averaged (null where the image cannot be decoded);
# and the probability that it is noisy (null likewise)
LOSSES = pa.schema([("key", pa.string()), ("loss", pa.float32()), ("eps", pa.float32())])
_STEPS_AT_MOST, _TOLERANCE = 200, 1e-5  # of EM; the tolerance is of the mean log-likelihood
_APART_AT_LEAST = 0.5  # of the smaller deviation: groups whose means are nearer are of one centre, and no two
_SMALLEST_VARIANCE = 1e-6  # of the variance of all losses: added to those of the groups

Losses = npt.NDArray[np.float32]
Two = tuple[float, float]


@dataclass(frozen=True)
class Mixture:
    """The lower and the higher group of losses: shares of the pairs, means and standard deviations, two each.

    `is_one` says that the losses do not fall into two groups, and no pair is held for noisy: one Gaussian explains them
    as well (by the Bayesian information criterion), or the groups have one centre.
    """

    shares: Two
    means: Two
    deviations: Two
    is_one: bool = False

    def noise(self, losses: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """The probability of each loss (n,) to be of the group with the higher mean, from 0 to 1.

        Below the lower mean it is 0: where the higher group is the wider one, its density is the greater on both ends,
        and the pairs with the least losses would be held for noisy.
        """
        if self.is_one:
            return np.zeros(len(losses))
        x = np.asarray(losses, np.float64)[None]
        share, mean, deviation = (np.array(pair)[:, None] for pair in (self.shares, self.means, self.deviations))
        with np.errstate(divide="ignore", over="ignore"):
            low, high = (
                np.log(share) - np.log(deviation) - 0.5 * np.log(2 * np.pi) - 0.5 * ((x - mean) / deviation) ** 2
            )
            posterior = 1 / (1 + np.exp(low - high))
        return np.where(losses < self.means[0], 0.0, posterior)


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


def check_installed() -> None:
    """Raise UsageError where scikit-learn is not installed: what cannot end does not begin."""
    if find_spec("sklearn") is None:
        raise UsageError(f"noise of pairs needs scikit-learn, not installed here; {bring('train')}")


def fitted(losses: npt.NDArray[np.floating]) -> Mixture:
    """The mixture of losses (n,), by scikit-learn's EM from the halves below and above the median: no random start.

    Raises AltalignError: a loss is no number, or there are fewer than two.
    """
    check_installed()
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
    from sklearn.exceptions import ConvergenceWarning  # pyright: ignore[reportMissingImports]  # a second to import
    from sklearn.mixture import GaussianMixture  # pyright: ignore[reportMissingImports]

    centre, scale = float(x.mean()), float(x.std())
    scaled = ((x - centre) / scale)[:, None]
    is_above = scaled[:, 0] > np.median(scaled)
    if not is_above.any():  # more than half are equal, and the greatest
        is_above = scaled[:, 0] == scaled.max()
    halves = [scaled[~is_above], scaled[is_above]]
    em: Any = GaussianMixture(  # its results are None in its types until it is fitted
        2,
        tol=_TOLERANCE,
        max_iter=_STEPS_AT_MOST,
        reg_covar=_SMALLEST_VARIANCE,
        weights_init=[len(half) / len(x) for half in halves],
        means_init=[half.mean(0) for half in halves],
        precisions_init=[[[1 / (float(half.var()) + _SMALLEST_VARIANCE)]] for half in halves],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # as near as so many steps come
        em.fit(scaled)
    order = np.argsort(em.means_[:, 0], kind="stable")
    shares, means = em.weights_[order], em.means_[order, 0] * scale + centre
    deviations = np.sqrt(em.covariances_[order, 0, 0]) * scale
    has_one_centre = means[1] - means[0] < _APART_AT_LEAST * deviations.min()
    of_one = len(x) * (np.log(2 * np.pi) + 1) + 2 * np.log(len(x))  # the criterion of one Gaussian, of deviation 1
    is_one = bool(has_one_centre or of_one <= em.bic(scaled))
    pairs = [(float(low), float(high)) for low, high in (shares, means, deviations)]
    return Mixture(*pairs, is_one=is_one)

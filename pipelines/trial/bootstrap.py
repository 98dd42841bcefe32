"""Totals over a pool, estimated from a sample of its images, with replicates of a bootstrap over hosts.

A total is a ratio: what the sample has of a quantity, over its images (or pairs), times the images (or pairs) of the
pool, which are known. It is taken in strata of hosts of about one size, and added up. Images of a host are available
or gone together, so the bootstrap draws hosts again, not images. A host with many images in the sample is a stratum of
its own, in which images are drawn again: all such hosts are in the sample, so there are no others to stand for.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

REPLICATES = 1_000
ALONE = 10  # images of a host in the sample, on average, from which on the host is a stratum of its own
_HOSTS_AT_LEAST = 8  # in the sample, of a stratum; classes of fewer are taken together with the next
_AT_ONCE = 1 << 22  # draws in memory

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


class Hosts(NamedTuple):
    """The h hosts of a pool: hashes of their names, which rise (uint64[h]); images and pairs of each (int64[h])."""

    names: npt.NDArray[np.uint64]
    images: Numbers
    pairs: Numbers


class Sample(NamedTuple):
    """n images: place of each one's host in the pool, and its pairs (int64[n]); the rate of each host (float64[h])."""

    hosts: Numbers
    pairs: Numbers
    rates: Floats


class Estimate(NamedTuple):
    """A total, and its 95 % interval."""

    value: float
    least: float
    most: float


def size_class(images: Numbers) -> Numbers:
    """The class of a host by its size: 0 of 1 to 3 images, 1 of 4 to 15, 2 of 16 to 63 and so on."""
    return (np.frexp(images.astype(np.float64))[1] - 1).astype(np.int64) // 2


def strata(sample: Sample, pool: Hosts) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The stratum of each host, int64[h], and whether the host is a stratum of its own, bool[h]."""
    seen = np.bincount(sample.hosts, minlength=len(pool.names))
    is_alone = (seen >= 2) & (pool.images * sample.rates >= ALONE)
    classes = size_class(pool.images)
    stratum = np.zeros(len(pool.names), np.int64)
    number = hosts = 0
    for name in np.unique(classes[~is_alone]).tolist():
        members = (classes == name) & ~is_alone
        stratum[members] = number
        hosts += int((seen[members] > 0).sum())
        if hosts >= _HOSTS_AT_LEAST:
            number, hosts = number + 1, 0
    stratum[~is_alone] = np.minimum(stratum[~is_alone], max(0, number - 1))  # few hosts at the end join those before
    if seen[~is_alone].any():  # otherwise the first large host stands for those of which the sample has none
        number = max(1, number)
    stratum[is_alone] = number + np.arange(is_alone.sum())
    return stratum, is_alone


def totals(sample: Sample, pool: Hosts, values: Floats, is_of_pairs: npt.NDArray[np.bool_], *, seed: int = 0) -> Floats:
    """Totals of q quantities over the pool, float64[1 + REPLICATES, q]: the estimates, then those of each replicate.

    Args:
        sample: the images.
        pool: the hosts that they were drawn from.
        values: of each quantity for each image, float64[n, q].
        is_of_pairs: whether a quantity goes with the pairs of an image, bool[q]; it goes with images otherwise.
        seed: of the draws; the same sample and seed give the same numbers.
    """
    random = np.random.default_rng(seed)
    by = is_of_pairs.astype(np.int64)
    known = np.stack([np.ones(len(sample.hosts)), sample.pairs], axis=1)
    weighted = np.concatenate([values, known], axis=1) / sample.rates[sample.hosts][:, None]
    stratum, is_alone = strata(sample, pool)
    of_pool = np.stack([np.bincount(stratum, weights=column) for column in (pool.images, pool.pairs)], axis=1)
    result = np.zeros((1 + REPLICATES, values.shape[1]))
    order = np.argsort(stratum[sample.hosts], kind="stable")
    for images in np.split(order, np.flatnonzero(np.diff(stratum[sample.hosts][order])) + 1):
        hosts = sample.hosts[images]
        whole = of_pool[stratum[hosts[0]]]
        units = np.arange(len(images)) if is_alone[hosts[0]] else np.unique(hosts, return_inverse=True)[1]
        sums = np.zeros((int(units.max()) + 1, weighted.shape[1]))
        np.add.at(sums, units, weighted[images])
        not_sampled = max(0.0, 1 - len(images) / whole[0])
        rows = max(1, _AT_ONCE // len(sums))
        for begin in range(0, len(result), rows):
            part = result[begin : begin + rows]
            drawn = _shares(random, len(part), len(sums), not_sampled)
            if begin == 0:
                drawn[0] = 1
            again = drawn @ sums
            part += whole[by] * again[:, :-2] / again[:, -2:][:, by]
    return result


def _shares(random: np.random.Generator, rows: int, units: int, not_sampled: float) -> Floats:
    """How often each replicate draws each unit, float64[rows, units], on average once.

    One unit less is drawn than there are, so that the variance of few units is right. The draws move from the sample
    only as far as what was not sampled lets them: a sample of everything has no error.
    """
    if units == 1:
        return np.ones((rows, 1))
    draws = random.integers(0, units, (rows, units - 1)) + units * np.arange(rows)[:, None]
    times = np.bincount(draws.ravel(), minlength=rows * units).reshape(rows, units) * (units / (units - 1))
    return 1 + np.sqrt(not_sampled) * (times - 1)


def estimate(replicates: Floats) -> Estimate:
    """The estimate that comes first in float64[1 + REPLICATES], and the 95 % interval of the others."""
    value = float(replicates[0])
    least, most = np.percentile(replicates[1:], [2.5, 97.5])
    return Estimate(value, min(float(least), value), max(float(most), value))

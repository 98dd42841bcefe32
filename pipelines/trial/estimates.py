"""Totals of a pool, estimated from some of its images, with 95 % intervals.

Images are drawn by a hash, at a rate for each class of hosts by size. An estimate is a ratio: what the sample has of a
quantity, over what it has of images (or pairs), times the images (or pairs) of the pool, which are known. Images of a
host live or die together, so an image is no draw of its own:

- A host with many images in the sample stands for itself: its images are drawn again from one another.
- The other hosts are drawn again as wholes, from those of about their size.

Drawing again is the bootstrap of Rao and Wu (1988), which is right for few draws too; what was sampled whole has no
error. Where few images count, percentiles of a bootstrap say too little: there the interval is also that of a sum of
weighted Poisson counts (Fay and Feuer 1997), which is not empty where nothing was seen.

An interval says how far the sample may be from the pool as hosts answered then. It knows nothing of hosts that change.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

REPLICATES = 1_000
ALONE = 10  # images of a host in the sample, on average, from which on it stands for itself
_HOSTS_AT_LEAST = 8  # in the sample, of a class; smaller classes are taken together with the next one
_AT_ONCE = 1 << 22  # draws
_Z = 1.959964  # of the normal distribution at 97.5 %

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class Hosts(NamedTuple):
    """The h hosts of a pool: hashes of their names, which rise; how many images and pairs each has."""

    names: Hashes
    images: Numbers
    pairs: Numbers


class Drawn(NamedTuple):
    """n images of a sample: their hosts, the rates at which they were drawn, and their pairs."""

    hosts: Hashes
    rates: Floats
    pairs: Numbers


class Quantity(NamedTuple):
    """What is to be added up over all images of a pool.

    Attributes:
        of: its value for each image of the sample, float64[n].
        is_of_pairs: whether it goes with the pairs of an image, and not with images.
        is_count: whether it counts images or pairs: no value is above what the pool has of these.
    """

    of: Floats
    is_of_pairs: bool
    is_count: bool


class Estimate(NamedTuple):
    """A total, and its 95 % interval."""

    value: float
    least: float
    most: float


class Group(NamedTuple):
    """Images of the sample that are drawn again from one another.

    Attributes:
        images: their numbers in the sample.
        unit: of each, the unit that it is drawn with, from 0.
        totals: images and pairs of the pool that they stand for.
        left: the share of these that is not in the sample.
    """

    images: Numbers
    unit: Numbers
    totals: tuple[int, int]
    left: float


def size_class(images: Numbers) -> Numbers:
    """The class of a host by its size: 0 of 1 to 3 images, 1 of 4 to 15, 2 of 16 to 63 and so on."""
    return (np.frexp(images.astype(np.float64))[1] - 1).astype(np.int64) // 2


def groups(drawn: Drawn, pool: Hosts) -> list[Group]:
    """The groups of a sample; together they stand for all of the pool of which anything was drawn."""
    place = np.searchsorted(pool.names, drawn.hosts)
    seen = np.bincount(place, minlength=len(pool.names))
    rate = np.zeros(len(pool.names))
    rate[place] = drawn.rates
    is_alone = (seen >= 2) & (pool.images * rate >= ALONE)
    order = np.argsort(place, kind="stable")
    begins = np.concatenate([[0], np.cumsum(seen)])
    found = list[Group]()
    for host in np.flatnonzero(is_alone).tolist():
        images = order[begins[host] : begins[host + 1]]
        totals = int(pool.images[host]), int(pool.pairs[host])
        found.append(Group(images, np.arange(len(images)), totals, 1 - len(images) / totals[0]))
    classes = np.where(is_alone, -1, size_class(pool.images))
    for among in _classes(classes, seen):
        hosts = np.isin(classes, among)
        images = np.flatnonzero(hosts[place])
        units = np.unique(place[images], return_inverse=True)[1].astype(np.int64)
        totals = int(pool.images[hosts].sum()), int(pool.pairs[hosts].sum())
        found.append(Group(images, units, totals, 1 - len(images) / totals[0]))
    return found


def _classes(classes: Numbers, seen: Numbers) -> list[list[int]]:
    """Classes of hosts, each by itself, or with the next ones where the sample has few of its hosts."""
    found, waiting, hosts = list[list[int]](), list[int](), 0
    for name in np.unique(classes[classes >= 0]).tolist():
        waiting.append(name)
        hosts += int((seen[classes == name] > 0).sum())
        if hosts >= _HOSTS_AT_LEAST:
            found.append(waiting)
            waiting, hosts = [], 0
    if waiting and found:
        found[-1] += waiting
    elif waiting and hosts:
        found.append(waiting)
    return found


def estimates(drawn: Drawn, pool: Hosts, quantities: Sequence[Quantity], *, seed: int = 0) -> list[Estimate]:
    """Estimate totals over a pool; the same sample gives the same numbers."""
    random = np.random.default_rng(seed)
    values = np.stack([quantity.of for quantity in quantities], axis=1)
    by = np.array([int(quantity.is_of_pairs) for quantity in quantities])
    total, again = np.zeros(len(quantities)), np.zeros((REPLICATES, len(quantities)))
    of_few, of_others, widest = np.zeros((3, len(quantities)))
    for group in groups(drawn, pool):
        weights = 1 / drawn.rates[group.images]
        known = np.stack([np.ones(len(group.images)), drawn.pairs[group.images].astype(np.float64)], axis=1)
        units = int(group.unit.max()) + 1
        sums = np.zeros((units, len(quantities) + 2))
        np.add.at(sums, group.unit, np.concatenate([values[group.images], known], axis=1) * weights[:, None])
        whole = np.array(group.totals, np.float64)[by]
        scale = whole / sums[:, len(quantities) :].sum(axis=0)[by]
        total += scale * sums[:, : len(quantities)].sum(axis=0)
        done = 0
        for shares in _shares(random, units, group.left):
            found = shares @ sums
            part = whole * found[:, : len(quantities)] / found[:, len(quantities) :][:, by]
            again[done : done + len(shares)] += part
            done += len(shares)
        expanded = scale * weights[:, None]
        of_few += group.left * ((expanded * values[group.images]) ** 2).sum(axis=0)
        of_others += group.left * ((expanded * (known[:, by] - values[group.images])) ** 2).sum(axis=0)
        widest = np.maximum(widest, np.sqrt(group.left) * scale * weights.max() * np.where(by, known[:, 1].mean(), 1))
    least, most = np.percentile(again, [2.5, 97.5], axis=0)
    found = list[Estimate]()
    most_of = np.array([pool.images.sum(), pool.pairs.sum()], np.float64)[by]
    for number, quantity in enumerate(quantities):
        low, high = float(least[number]), float(most[number])
        if quantity.is_count:
            few = _of_few(total[number], of_few[number], widest[number])
            if total[number] > most_of[number] / 2:  # then few of the others are what is rare
                others = _of_few(most_of[number] - total[number], of_others[number], widest[number])
                few = most_of[number] - others[1], most_of[number] - others[0]
            low, high = max(min(low, few[0]), values[:, number].sum()), min(max(high, few[1]), most_of[number])
        value = float(total[number])
        found.append(Estimate(value, min(low, value), max(high, value)))
    return found


def _shares(random: np.random.Generator, units: int, left: float) -> Iterator[Floats]:
    """How much of each unit every replicate has, float64[r, units], in parts.

    A replicate draws one unit less than there are, so that its variance is right, and moves so far from the sample as
    what was not sampled lets it.
    """
    if units < 2:
        yield np.ones((REPLICATES, units))
        return
    at_once, spread = max(1, _AT_ONCE // units), np.sqrt(max(0.0, left))
    for begin in range(0, REPLICATES, at_once):
        rows = min(at_once, REPLICATES - begin)
        draws = random.integers(0, units, (rows, units - 1)) + np.arange(rows)[:, None] * units
        times = np.bincount(draws.ravel(), minlength=rows * units).reshape(rows, units)
        yield 1 + spread * (times * units / (units - 1) - 1)


def _of_few(value: float, variance: float, widest: float) -> tuple[float, float]:
    """The interval of a weighted sum of Poisson counts, of which one more would weigh `widest`."""
    low = _gamma(value, variance, -_Z) if value else 0.0
    return low, _gamma(value + widest, variance + widest**2, _Z)


def _gamma(mean: float, variance: float, z: float) -> float:
    """A quantile of a gamma distribution, by the cube root of Wilson and Hilferty."""
    if not variance or not mean:
        return float(mean)
    shape = mean**2 / variance
    return float(mean * max(0.0, 1 - 1 / (9 * shape) + z / (3 * np.sqrt(shape))) ** 3)

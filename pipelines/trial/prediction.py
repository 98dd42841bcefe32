"""What a trial predicts of a curation: pairs and images by stage and reason, amounts, CPU, hours on machines, cost."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from altalign.curation import CurateConfig
from altalign.machine.cores import cores
from altalign.pipelines.trial import estimates, outcomes
from altalign.pipelines.trial.estimates import Drawn, Estimate, Hosts, Quantity, size_class
from altalign.pipelines.trial.outcomes import BYTES, SECONDS, SHARD_BYTES, Named, Outcomes
from altalign.reasons import KEPT, Stage

CPU = "CPU seconds"
_CAME, _OF_CLASS = "images that came", "hosts of class "

Floats = npt.NDArray[np.float64]


class Measured(NamedTuple):
    """CPU seconds of the stages of a trial; None where nobody measured them.

    `extract`, `tables` and `judge` were done for the whole pool, the others for the sample.
    """

    text: float | None
    fetch: float | None
    decontaminate: float | None
    write: float | None


class Machines(NamedTuple):
    """How long so many machines take, what they wait for, and what it costs; None without prices."""

    machines: int
    hours: Estimate
    limit: str
    cost: Estimate | None


class HostClass(NamedTuple):
    """Hosts of about one size: how many, their images in the pool and the sample, how many come, and how long it takes.

    `most` is the largest number of images that a host of it has; `seconds` are those of one image.
    """

    least: int
    most: int
    hosts: int
    images: int
    sampled: int
    came: Estimate
    seconds: Estimate | None


class Prediction(NamedTuple):
    """All that a trial predicts.

    Attributes:
        pool: the hosts of the images that passed `judge`.
        sampled: images and pairs in the sample.
        found: every estimate by its name.
        hosts: by size.
        machines: for each number of machines.
        measured: CPU seconds of the trial.
    """

    pool: Hosts
    sampled: tuple[int, int]
    found: Mapping[Named, Estimate]
    hosts: Sequence[HostClass]
    machines: Sequence[Machines]
    measured: Measured


def predict(config: CurateConfig, drawn: Drawn, pool: Hosts, of: Outcomes, cpu: Measured) -> Prediction:
    """Estimate everything that a trial predicts."""
    of_cpu = _cpu(of, cpu)
    wanted = {**outcomes.quantities(of, drawn.pairs), **of_cpu}
    wanted |= _by_class(drawn, pool, of)
    found = dict(zip(wanted, estimates.estimates(drawn, pool, list(wanted.values())), strict=True))
    for name in of_cpu:  # how much of it was starting up is not known: at the least all of it
        value, least, most = found[name]
        found[name] = Estimate(value, min(least, getattr(cpu, name.stage)), most)
    hosts = _hosts(drawn, pool, found)
    machines = [
        _machines(config, pool, found, number, float(of.seconds.max(initial=0))) for number in config.prices.machines
    ]
    said = {name: value for name, value in found.items() if not name.stage.startswith(_OF_CLASS)}
    return Prediction(pool, (len(drawn.hosts), int(drawn.pairs.sum())), said, hosts, machines, cpu)


# CPU -----------------------------------------------------------------------------------------------------------------


def _cpu(of: Outcomes, cpu: Measured) -> dict[Named, Quantity]:
    """CPU seconds as a sum over images: those of `fetch` by bytes that came, of `write` by bytes of shards."""
    images = len(of.bytes)
    searched = np.ones(images)
    searched[[number for number, (stage, _) in of.dropped.items() if stage is not Stage.DECONTAMINATE]] = 0
    shares = {"fetch": of.bytes, "decontaminate": searched, "write": of.shard_bytes}
    found = dict[Named, Quantity]()
    for stage, share in shares.items():
        if (seconds := getattr(cpu, stage)) is not None and images:
            each = share / share.sum() if share.any() else np.full(images, 1 / images)
            found[Named(stage, KEPT, CPU)] = Quantity(seconds * each, is_of_pairs=False, is_count=False)
    return found


# Hosts ---------------------------------------------------------------------------------------------------------------


def _by_class(drawn: Drawn, pool: Hosts, of: Outcomes) -> dict[Named, Quantity]:
    """For each class of hosts: how many of its images come, and their seconds."""
    classes = size_class(pool.images)[np.searchsorted(pool.names, drawn.hosts)]
    came = np.ones(len(classes))
    came[[number for number, (stage, _) in of.dropped.items() if stage is Stage.FETCH]] = 0
    found = dict[Named, Quantity]()
    for name in np.unique(classes).tolist():
        mine = classes == name
        found[Named(f"{_OF_CLASS}{name}", KEPT, _CAME)] = Quantity(came * mine, is_of_pairs=False, is_count=True)
        if of.seconds.any():
            seconds = Quantity(of.seconds * mine, is_of_pairs=False, is_count=False)
            found[Named(f"{_OF_CLASS}{name}", KEPT, SECONDS)] = seconds
    return found


def _hosts(drawn: Drawn, pool: Hosts, found: Mapping[Named, Estimate]) -> list[HostClass]:
    of_pool = size_class(pool.images)
    of_sample = of_pool[np.searchsorted(pool.names, drawn.hosts)]
    rows = list[HostClass]()
    for name in np.unique(of_pool).tolist():
        images = int(pool.images[of_pool == name].sum())
        came = found.get(Named(f"{_OF_CLASS}{name}", KEPT, _CAME))
        seconds = found.get(Named(f"{_OF_CLASS}{name}", KEPT, SECONDS))
        each = Estimate(*(value / images for value in seconds)) if seconds else None
        of_class = (pool.images[of_pool == name].min(), pool.images[of_pool == name].max(), (of_pool == name).sum())
        least, most, hosts = map(int, of_class)
        if came:
            came = Estimate(came.value, came.least, min(came.most, images))
            rows.append(HostClass(least, most, hosts, images, int((of_sample == name).sum()), came, each))
    return rows


# Machines ------------------------------------------------------------------------------------------------------------


def _machines(
    config: CurateConfig, pool: Hosts, found: Mapping[Named, Estimate], machines: int, longest_s: float
) -> Machines:
    """How long so many machines take for what is left: what lasts longest of CPU, asking, the largest host, one image.

    `longest_s` is that of the sample's images: a server that hangs holds up the end of a small run.
    """
    prices, fetch = config.prices, config.fetch
    limits = dict[str, Estimate]()
    cpu = [value for name, value in found.items() if name.of == CPU]
    if cpu:
        total = [sum(values) / (machines * (prices.cores or cores()) * 3_600) for values in zip(*cpu, strict=True)]
        limits["CPU"] = Estimate(*total)
    if asking := found.get(Named(Stage.FETCH.value, KEPT, SECONDS)):
        limits["asking"] = Estimate(*(value / (machines * fetch.threads * 3_600) for value in asking))
        largest = int(pool.images.max())
        each = [value / max(1, int(pool.images.sum())) for value in asking]
        rests = [max(1 / fetch.requests_per_host_s, one / fetch.connections_per_host) for one in each]
        limits["one host"] = Estimate(*(largest * rest / (machines * 3_600) for rest in rests))
        limits["one image"] = Estimate(*[longest_s / 3_600] * 3)
    if not limits:
        return Machines(machines, Estimate(0.0, 0.0, 0.0), "", None)
    limit = max(limits, key=lambda name: limits[name].value)
    hours = Estimate(*(max(values) for values in zip(*limits.values(), strict=True)))
    priced = {BYTES: prices.gigabyte_fetched, SHARD_BYTES: prices.gigabyte_month}
    cost = [value * machines * prices.machine_hour for value in hours]
    for name, price in priced.items():
        if amount := next((value for of, value in found.items() if of.of == name), None):
            cost = [before + value / 1e9 * price for before, value in zip(cost, amount, strict=True)]
    has_prices = prices.machine_hour or any(priced.values())
    return Machines(machines, hours, limit, Estimate(*cost) if has_prices else None)

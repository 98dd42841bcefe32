"""What a trial predicts of the whole run: pairs and images by stage and reason, bytes, and how long it takes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from altalign.data.reasons import KEPT, Stage
from altalign.pipelines.run.image_tables import AUGMENTED, DECONTAMINATED, FETCHED, INDEX, LEARNED, TESTS
from altalign.pipelines.run.shard_tables import WRITTEN
from altalign.pipelines.trial.bootstrap import Estimate, Floats, Hosts, Sample, estimate, totals
from altalign.pipelines.trial.outcomes import STAGES, Outcomes
from altalign.settings.curate import CurateConfig

BYTES, SHARD_BYTES, HOURS = "bytes fetched", "bytes of shards", "hours"
SEEN_AT_LEAST = 10  # images of the sample; an interval that rests on fewer would be too narrow
_ASKED_AT_LEAST = 0.1  # of the sample: CPU seconds of fewer images say nothing of all
_ONCE = (TESTS.step, AUGMENTED.step, LEARNED.step, INDEX.step)  # take as long, whatever the number of images
_ASKING, _CPU_OF_FETCH, _CPU_AFTER = "seconds of asking", "CPU of fetch", "CPU of what follows"


class Quantity(NamedTuple):
    """What is estimated: a stage, a reason or `kept`, and `pairs`, `images` or the name of an amount."""

    stage: str
    reason: str
    of: str


class Prediction(NamedTuple):
    """A trial's prediction; `is_timed` is whether CPU seconds were measured, and so are a part of the hours."""

    pool: Hosts
    images: int
    pairs: int
    estimates: Mapping[Quantity, Estimate]
    is_rare: frozenset[Quantity]  # seen in too few images for an interval
    is_timed: bool


def predict(
    config: CurateConfig, sample: Sample, pool: Hosts, outcomes: Outcomes, cpu_s: Mapping[str, float]
) -> Prediction:
    """Estimate everything that a trial predicts; `cpu_s` are the CPU seconds of the sample's steps."""
    columns = _counts(outcomes, sample.pairs)
    columns[Quantity(Stage.FETCH.value, KEPT, BYTES)] = outcomes.bytes
    columns[Quantity("shards", KEPT, SHARD_BYTES)] = outcomes.shard_bytes
    is_timed = _is_timed(config, outcomes, cpu_s)
    parts = {_ASKING: outcomes.seconds, **(_cpu(outcomes, cpu_s) if is_timed else {})}
    values = np.stack([*columns.values(), *parts.values()], axis=1)
    is_of_pairs = np.array([name.of == "pairs" for name in columns] + [False] * len(parts))
    replicates = totals(sample, pool, values, is_of_pairs)
    estimates = {name: estimate(replicates[:, number]) for number, name in enumerate(columns)}
    times = dict(zip(parts, replicates[:, len(columns) :].T, strict=True))
    estimates[Quantity("all", KEPT, HOURS)] = estimate(_hours(config, pool, times, outcomes, cpu_s))
    if config.dedup.within_pool != "off":  # a sample has few pairs of near-duplicates: what that rule drops is unknown
        for name in (name for name in estimates if name.reason == KEPT and name.stage in ("decontaminate", "shards")):
            estimates[name] = estimates[name]._replace(least=0.0)
    rare = (name for name, column in columns.items() if np.count_nonzero(column) < SEEN_AT_LEAST)
    return Prediction(pool, len(sample.hosts), int(sample.pairs.sum()), estimates, frozenset(rare), is_timed)


def _counts(outcomes: Outcomes, pairs: Any) -> dict[Quantity, Floats]:
    """Pairs and images of each stage by reason, and kept."""
    columns, left = dict[Quantity, Floats](), np.ones(len(pairs))
    for stage in STAGES:
        by_reason = defaultdict[str, Floats](lambda: np.zeros(len(pairs)))
        for number, (dropped_by, reason) in outcomes.dropped.items():
            if dropped_by is stage:
                by_reason[reason][number] = 1
        for mask in by_reason.values():
            left = left - mask
        for reason, mask in [*sorted(by_reason.items()), (KEPT, left)]:
            columns[Quantity(stage.value, reason, "pairs")] = mask * pairs
            columns[Quantity(stage.value, reason, "images")] = mask
    return columns


# Time ----------------------------------------------------------------------------------------------------------------


def _is_timed(config: CurateConfig, outcomes: Outcomes, cpu_s: Mapping[str, float]) -> bool:
    """Whether fetching was timed, on enough images: those that an earlier trial has fetched cost little."""
    is_asked = config.fetch.source != "web" or outcomes.requested >= _ASKED_AT_LEAST * max(
        1, int(np.count_nonzero(outcomes.seconds))
    )
    return is_asked and {FETCHED.step, DECONTAMINATED.step, WRITTEN.step} <= cpu_s.keys()


def _cpu(outcomes: Outcomes, cpu_s: Mapping[str, float]) -> dict[str, Floats]:
    """CPU seconds of each image: of fetching by the bytes that came, of writing by those of shards, else evenly."""
    images = len(outcomes.bytes)
    searched = np.ones(images)
    searched[[number for number, (stage, _) in outcomes.dropped.items() if stage is not Stage.DECONTAMINATE]] = 0
    share = outcomes.requested / max(1, np.count_nonzero(outcomes.seconds)) or 1.0
    others = sum(cpu_s.values()) - sum(cpu_s.get(name, 0.0) for name in (FETCHED.step, WRITTEN.step, *_ONCE))
    return {
        _CPU_OF_FETCH: cpu_s[FETCHED.step] / share * _shares(outcomes.bytes),
        _CPU_AFTER: others * _shares(searched) + cpu_s[WRITTEN.step] * _shares(outcomes.shard_bytes),
    }


def _shares(amounts: Floats) -> Floats:
    return amounts / amounts.sum() if amounts.any() else np.full(len(amounts), 1 / len(amounts))


def _hours(
    config: CurateConfig, pool: Hosts, times: Mapping[str, Floats], outcomes: Outcomes, cpu_s: Mapping[str, float]
) -> Floats:
    """Hours of `fetch` and what follows, float64[r], on this machine.

    Fetching takes as long as the longest of CPU, of asking with `fetch.threads` at a time, of the host with the most
    images at its pace, and of the slowest image of the sample.
    """
    fetch, cores, asking = config.fetch, config.engine.threads, times[_ASKING]
    limits = [asking / fetch.threads, np.full(len(asking), outcomes.seconds.max(initial=0))]
    if outcomes.seconds.any():
        pace = np.maximum(1 / fetch.requests_per_host_s, asking / pool.images.sum() / fetch.connections_per_host)
        limits.append(pool.images.max() * pace)
    after = np.full(len(asking), sum(cpu_s.get(name, 0.0) for name in _ONCE))
    if _CPU_AFTER in times:
        limits.append(times[_CPU_OF_FETCH] / cores)
        after = after + times[_CPU_AFTER]
    return (np.maximum.reduce(limits) + after / cores) / 3_600


def rows(prediction: Prediction) -> Sequence[dict[str, Any]]:
    """The estimates for `trial.json`; `least` and `most` are null where too few images of the sample have it."""
    return [
        {
            **name._asdict(),
            "value": _number(value.value),
            "least": None if name in prediction.is_rare else _number(value.least),
            "most": None if name in prediction.is_rare else _number(value.most),
        }
        for name, value in prediction.estimates.items()
    ]


def _number(value: float) -> float:
    return round(value) if value >= 10_000 or value == int(value) else float(f"{value:.6g}")

"""What a trial predicts of the whole run: pairs and images by stage and reason, bytes, and how long it takes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from altalign import storage
from altalign.data.reasons import KEPT, Stage
from altalign.machine import interrupts
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import FETCHED, INDEX, LEARNED, TESTS
from altalign.pipelines.run.shard_tables import WRITTEN
from altalign.pipelines.run.text_tables import GROUPED
from altalign.pipelines.run.units import Sampled, trials
from altalign.pipelines.trial.sample import Floats, Hosts, Numbers, Sample
from altalign.pipelines.web import journal
from altalign.settings.curate import CurateConfig
from altalign.storage import parquet

STAGES = (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE)
BYTES, SHARD_BYTES, HOURS = "bytes fetched", "bytes of shards", "hours"
SEEN_AT_LEAST = 10  # images of the sample; an interval that rests on fewer would be too narrow
ASKED_AT_LEAST = 0.1  # of the sample: CPU seconds of fewer images say nothing of all
_ONCE = (TESTS.step, LEARNED.step, INDEX.step)  # take as long, whatever the number of images
REPLICATES = 1_000
ALONE = 10  # images of a host in the sample, on average, from which on the host is a stratum of its own
_AT_ONCE = 1 << 22  # draws in memory


class Outcomes(NamedTuple):
    """What became of n images, by their numbers in the sample: float64[n], 0 where nothing came."""

    dropped: Mapping[int, tuple[Stage, str]]  # stage and reason
    bytes: Floats  # of the bodies that came
    shard_bytes: Floats  # of their samples in shards
    seconds: Floats  # of all tries, redirects and bodies included
    requested: int = 0  # images that this sample asked for, and no earlier one

    @property
    def requested_share(self) -> float:
        """The share of the images asked for that this sample asked for; 1 of images in hand."""
        return self.requested / np.count_nonzero(self.seconds) if self.seconds.any() else 1.0


def of_sample(sample: Sampled, image_ids: Sequence[str]) -> Outcomes:
    """Gather what the stages left of a sample."""
    number_of = {image_id: number for number, image_id in enumerate(image_ids)}
    dropped, (size, shard_bytes, seconds) = dict[int, tuple[Stage, str]](), np.zeros((3, len(image_ids)))
    units, begin = sample.finished(FETCHED.step), 0
    for stage in STAGES:
        for name in units:
            if storage.exists(path := outputs.dropped(sample, stage, name)):
                for row in parquet.read_table(path, ["image_id", "reason"]).to_pylist():
                    dropped[number_of[row["image_id"]]] = stage, row["reason"]
    for name in units if sample.config.fetch.source == "web" else ():
        for number, outcome in journal.read(sample.work(FETCHED.step, name)).outcomes.items():
            size[begin + number] = outcome.found_bytes
        partition, group = name.split("-")
        begin += sample.facts_of(GROUPED, partition).row_groups[int(group)]["images"]
    for name, facts in sample.all_facts(WRITTEN):  # from the header of an image in the tar to that of the next
        rows = parquet.read_table(sample.path("shards", f"{name}.parquet"), ["image_id", "tar_offset"])
        sizes = np.diff(rows["tar_offset"].to_numpy() - 512, append=facts.bytes)
        np.add.at(shard_bytes, [number_of[image_id] for image_id in parquet.values(rows, "image_id")], sizes)
    requested = set[str]()
    for folder in trials(sample):  # of earlier samples too
        logs = storage.join(folder, "log", "fetch")
        for name in storage.names(logs, ".jsonl") if storage.kind(logs) == "folder" else ():
            interrupts.check()
            for line in storage.read_bytes(storage.join(logs, name)).splitlines():
                with suppress(ValueError):  # a kill has cut it
                    entry = orjson.loads(line)
                    if (image_id := str(entry.get("image_id"))) in number_of:
                        seconds[number_of[image_id]] += float(entry.get("seconds", 0.0))
                        requested |= {image_id} if folder == sample.folder else set()
    return Outcomes(dropped, size, shard_bytes, seconds, len(requested))


def predict(
    config: CurateConfig, sample: Sample, pool: Hosts, outcomes: Outcomes, cpu_s: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Estimate all that a trial predicts, as rows of `trial.json`; `cpu_s` are CPU seconds of the sample's steps.

    A row has stage, reason (or `kept`), `of` (pairs, images or the name of an amount), `value`, and the ends of its
    95 % interval, `least` and `most`: null where too few images of the sample have it.
    """
    count, columns = len(sample.hosts), dict[tuple[str, str, str], Floats]()
    left = np.ones(count)
    for stage in STAGES:
        by_reason = defaultdict[str, Floats](lambda: np.zeros(count))
        for number, (dropped_by, reason) in outcomes.dropped.items():
            if dropped_by is stage:
                by_reason[reason][number] = 1
                left[number] = 0
        for reason, mask in [*sorted(by_reason.items()), (KEPT, left.copy())]:
            columns[stage.value, reason, "pairs"] = mask * sample.pairs
            columns[stage.value, reason, "images"] = mask
    columns[Stage.FETCH.value, KEPT, BYTES] = outcomes.bytes
    columns["shards", KEPT, SHARD_BYTES] = outcomes.shard_bytes

    def by(amounts: Floats, cpu: float) -> Floats:
        return cpu * (amounts / amounts.sum() if amounts.any() else np.full(count, 1 / count))

    once, fetching = (sum(cpu_s.get(name, 0.0) for name in steps) for steps in (_ONCE, [FETCHED.step]))
    of_fetch = fetching / outcomes.requested_share if outcomes.requested_share >= ASKED_AT_LEAST else 0.0
    of_rest = sum(cpu_s.values()) - once - fetching
    seconds = [outcomes.seconds, by(outcomes.bytes, of_fetch), by(outcomes.shard_bytes, of_rest)]
    values = np.stack([*columns.values(), *seconds], axis=1)
    replicates = totals(sample, pool, values, np.array([of == "pairs" for *_, of in columns] + [False] * len(seconds)))
    rows = list[dict[str, Any]]()
    for (name, column), total in zip(columns.items(), replicates.T, strict=False):
        row = _row(*name, total, is_rare=bool(np.count_nonzero(column) < SEEN_AT_LEAST))
        # a sample has few pairs of near-duplicates: how many images that rule drops of the pool is not known
        if config.dedup.within_pool != "off" and name[0] in ("decontaminate", "shards") and name[1] == KEPT:
            row["least"] = None if row["least"] is None else 0
        rows.append(row)

    # Fetching takes as long as the longest of CPU, of asking with `fetch.threads` at a time, of the host with the most
    # images at its pace, and of the slowest image of the sample.
    fetch, cores = config.fetch, config.engine.threads
    asking, cpu_of_fetch, cpu_after = replicates.T[len(columns) :]
    limits = [asking / fetch.threads, np.full(len(asking), outcomes.seconds.max(initial=0)), cpu_of_fetch / cores]
    if outcomes.seconds.any():
        pace = np.maximum(1 / fetch.requests_per_host_s, asking / pool.images.sum() / fetch.connections_per_host)
        limits.append(pool.images.max() * pace)
    hours = (np.maximum.reduce(limits) + (once + cpu_after) / cores) / 3_600
    return [*rows, _row("all", KEPT, HOURS, hours)]


def _row(stage: str, reason: str, of: str, replicates: Floats, *, is_rare: bool = False) -> dict[str, Any]:
    value, least, most = (float(f"{number:.10g}") for number in interval(replicates))
    ends = {"least": None, "most": None} if is_rare else {"least": least, "most": most}
    return {"stage": stage, "reason": reason, "of": of, "value": value, **ends}


def strata(sample: Sample, pool: Hosts) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The stratum of each host, int64[h], and whether the host is a stratum of its own, bool[h].

    All others are one stratum; where the sample has none of them, the first large host stands for them.
    """
    seen = np.bincount(sample.hosts, minlength=len(pool.names))
    is_alone = (seen >= 2) & (pool.images * sample.rates >= ALONE)
    others = int(seen[~is_alone].any())
    return np.where(is_alone, others + np.cumsum(is_alone) - 1, 0), is_alone


def totals(sample: Sample, pool: Hosts, values: Floats, is_of_pairs: npt.NDArray[np.bool_], *, seed: int = 0) -> Floats:
    """Totals of q quantities over the pool, float64[1 + REPLICATES, q]: the estimates, then those of each replicate.

    `values` are float64[n, q]; a quantity goes with pairs where `is_of_pairs` (bool[q]), else with images.

    A total is a ratio: what the sample has of a quantity, over its images (or pairs), times the images (or pairs) of
    the pool, which are known. Images of a host are available or gone together, so the bootstrap draws hosts again, not
    images. A host with many images in the sample is a stratum of its own, in which images are drawn again: all such
    hosts are in the sample.
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
            drawn = _draws(random, len(part), len(sums), not_sampled)
            if begin == 0:
                drawn[0] = 1
            again = drawn @ sums
            part += whole[by] * again[:, :-2] / again[:, -2:][:, by]
    return result


def _draws(random: np.random.Generator, rows: int, units: int, not_sampled: float) -> Floats:
    """How often each replicate draws each unit, float64[rows, units], on average once.

    One unit less is drawn than there are, so that the variance of few units is right. The draws move from the sample
    only as far as what was not sampled lets them: a sample of everything has no error.
    """
    if units == 1:
        return np.ones((rows, 1))
    draws = random.integers(0, units, (rows, units - 1)) + units * np.arange(rows)[:, None]
    times = np.bincount(draws.ravel(), minlength=rows * units).reshape(rows, units) * (units / (units - 1))
    return 1 + np.sqrt(not_sampled) * (times - 1)


def interval(replicates: Floats) -> tuple[float, float, float]:
    """The estimate that comes first in float64[1 + REPLICATES], and the ends of the 95 % interval of the others."""
    value = float(replicates[0])
    least, most = np.percentile(replicates[1:], [2.5, 97.5])
    return value, min(float(least), value), max(float(most), value)

"""What became of each image of a trial: the stage and reason that dropped it, bytes, seconds of asking."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from altalign import storage
from altalign.data.reasons import Stage
from altalign.machine import interrupts
from altalign.pipelines.run import outputs
from altalign.pipelines.run.image_tables import FETCHED
from altalign.pipelines.run.shard_tables import WRITTEN
from altalign.pipelines.run.text_tables import GROUPED
from altalign.pipelines.run.units import Sampled, trials
from altalign.pipelines.trial.bootstrap import Floats
from altalign.pipelines.web import journal
from altalign.storage import parquet

STAGES = (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE)


@dataclass(frozen=True)
class Outcomes:
    """What became of n images, by their numbers in the sample.

    Attributes:
        dropped: stage and reason of those that were dropped.
        bytes: of the bodies that came, float64[n]; 0 where nothing came.
        shard_bytes: of their samples in shards, float64[n].
        seconds: of all tries, redirects and bodies included, float64[n]; 0 where nothing was asked.
        requested: images that this sample asked for, and no earlier one.
    """

    dropped: Mapping[int, tuple[Stage, str]]
    bytes: Floats
    shard_bytes: Floats
    seconds: Floats
    requested: int = 0


def of_sample(sample: Sampled, image_ids: Sequence[str]) -> Outcomes:
    """Gather what the stages left of a sample."""
    number_of = {image_id: number for number, image_id in enumerate(image_ids)}
    dropped = dict[int, tuple[Stage, str]]()
    for stage in STAGES:
        for name in sample.finished(FETCHED.step):
            if storage.exists(path := outputs.dropped(sample, stage, name)):
                rows = parquet.read_table(path, ["image_id", "reason"])
                ids, reasons = (parquet.values(rows, column) for column in rows.column_names)
                dropped |= {number_of[i]: (stage, reason) for i, reason in zip(ids, reasons, strict=True)}
    size, (seconds, requested) = np.zeros(len(image_ids)), _tries(sample, number_of)
    if sample.config.fetch.source == "web":
        begin = 0
        for name in sample.finished(FETCHED.step):
            for number, outcome in journal.read(sample.work(FETCHED.step, name)).outcomes.items():
                size[begin + number] = outcome.bytes
            partition, group = name.split("-")
            begin += sample.facts_of(GROUPED, partition).row_groups[int(group)]["images"]
    return Outcomes(dropped, size, _shard_bytes(sample, number_of), seconds, requested)


def _tries(sample: Sampled, number_of: Mapping[str, int]) -> tuple[Floats, int]:
    """Seconds of the tries of each image, of earlier samples too, and how many images this sample asked for."""
    seconds, requested = np.zeros(len(number_of)), set[str]()
    for folder in trials(sample):
        for image_id, taken in _lines(storage.join(folder, "log", "fetch")):
            if image_id in number_of:
                seconds[number_of[image_id]] += taken
                if folder == sample.folder:
                    requested.add(image_id)
    return seconds, len(requested)


def _lines(folder: str) -> Iterator[tuple[str, float]]:
    for name in storage.names(folder, ".jsonl") if storage.kind(folder) == "folder" else ():
        interrupts.check()
        for line in storage.read_bytes(storage.join(folder, name)).splitlines():
            try:
                entry = orjson.loads(line)
            except ValueError:  # a kill has cut it
                continue
            if isinstance(entry, dict) and "image_id" in entry:
                yield entry["image_id"], float(entry.get("seconds", 0.0))


def _shard_bytes(sample: Sampled, number_of: Mapping[str, int]) -> Floats:
    """The bytes of each image's samples in the tars: from the header of an image to that of the next, or the end."""
    total = np.zeros(len(number_of))
    for name, facts in sample.all_facts(WRITTEN):
        rows = parquet.read_table(sample.path("shards", f"{name}.parquet"), ["image_id", "tar_offset"])
        sizes = np.diff(rows["tar_offset"].to_numpy() - 512, append=facts.bytes)
        np.add.at(total, [number_of[image_id] for image_id in parquet.values(rows, "image_id")], sizes)
    return total

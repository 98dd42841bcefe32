"""What became of each image of a trial: the stage and reason that dropped it, bytes, seconds of asking."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from altalign import storage
from altalign.machine import interrupts
from altalign.pipelines.files import parquet
from altalign.pipelines.run import outputs
from altalign.pipelines.run.artefacts.fetched import Fetched
from altalign.pipelines.run.artefacts.judged import GROUPED
from altalign.pipelines.run.artefacts.written import WRITTEN
from altalign.pipelines.run.sampled import Sampled, trials
from altalign.pipelines.trial.estimates import Quantity
from altalign.pipelines.web.kept import journal
from altalign.reasons import KEPT, Stage

STAGES = (Stage.FETCH, Stage.IMAGE, Stage.DECONTAMINATE)
BYTES, SHARD_BYTES, SECONDS = "bytes fetched", "bytes of shards", "seconds of asking"

NOT_SEEN = "any other reason"  # of any stage, each

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outcomes:
    """What became of n images, by their numbers in the sample.

    Attributes:
        dropped: stage and reason of those that were dropped.
        bytes: of the bodies that came, float64[n]; 0 where nothing came.
        shard_bytes: of their samples in shards.
        seconds: of all tries, redirects and bodies included; 0 where nobody was asked.
    """

    dropped: Mapping[int, tuple[Stage, str]]
    bytes: Floats
    shard_bytes: Floats
    seconds: Floats
    asked: int = field(default=0)  # images that this sample asked for, and no earlier one


def of_sample(sample: Sampled, image_ids: Sequence[str]) -> Outcomes:
    """Gather what the stages left of a sample."""
    number_of = {image_id: number for number, image_id in enumerate(image_ids)}
    dropped = dict[int, tuple[Stage, str]]()
    for stage in STAGES:
        for name in sample.finished(Fetched.step):
            if storage.exists(path := outputs.dropped(sample, stage, name)):
                rows = parquet.read_table(path, ["image_id", "reason"])
                ids, reasons = (parquet.values(rows, column) for column in rows.column_names)
                dropped |= {number_of[i]: (stage, reason) for i, reason in zip(ids, reasons, strict=True)}
    size, seconds = np.zeros(len(image_ids)), np.zeros(len(image_ids))
    asked = 0
    if sample.config.fetch.source == "web":
        begin = 0
        for name in sample.finished(Fetched.step):
            outcomes = journal.read(Fetched(sample, name).stem).outcomes
            for number, outcome in outcomes.items():
                size[begin + number] = outcome.bytes
            partition, group = name.split("-")
            begin += sample.facts_of(GROUPED, partition).row_groups[int(group)]["images"]
        asked = _tries(sample, number_of, seconds)
    return Outcomes(dropped, size, _shard_bytes(sample, number_of), seconds, asked)


def _tries(sample: Sampled, number_of: Mapping[str, int], seconds: Floats) -> int:
    """Add up the seconds of tries, of earlier samples too; returns how many images this one asked for."""
    asked = 0
    for folder in sorted(trials(sample), key=lambda folder: folder == sample.folder):
        of_folder = defaultdict[int, float](float)
        for image_id, taken in _lines(storage.join(folder, "log", "fetch")):
            if (number := number_of.get(image_id)) is not None:
                of_folder[number] += taken
        for number, taken in of_folder.items():
            seconds[number] = taken
        asked = len(of_folder)
    return asked


def _lines(folder: str) -> Iterator[tuple[str, float]]:
    for name in storage.names(folder, ".jsonl") if storage.kind(folder) == "folder" else ():
        interrupts.check()
        for line in storage.read_bytes(storage.join(folder, name)).splitlines():
            said = _json(line)
            if isinstance(said, dict) and "image_id" in said:
                yield said["image_id"], float(said.get("seconds", 0.0))


def _json(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:  # a kill has cut it
        return None


def _shard_bytes(sample: Sampled, number_of: Mapping[str, int]) -> Floats:
    """The bytes of each image's samples in the tars: from the header of an image to that of the next, or the end."""
    found = np.zeros(len(number_of))
    for name, facts in sample.all_facts(WRITTEN):
        rows = parquet.read_table(sample.path("shards", f"{name}.parquet"), ["image_id", "tar_offset"])
        sizes = np.diff(rows["tar_offset"].to_numpy() - 512, append=facts.bytes)
        np.add.at(found, [number_of[image_id] for image_id in parquet.values(rows, "image_id")], sizes)
    return found


# Quantities ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """A quantity by what it counts: a stage, a reason or `kept`, and `pairs`, `images` or the name of an amount."""

    stage: str
    reason: str
    of: str


def quantities(outcomes: Outcomes, pairs: npt.NDArray[np.int64]) -> dict[Named, Quantity]:
    """All that is estimated of a pool: pairs and images by stage and reason, and amounts."""
    images, found = len(pairs), dict[Named, Quantity]()
    left = np.ones(images)
    for stage in STAGES:
        by_reason = defaultdict[str, list[int]](list)
        for number, (of, reason) in outcomes.dropped.items():
            if of is stage:
                by_reason[reason].append(number)
        going = {reason: _at(numbers, images) for reason, numbers in by_reason.items()}
        for mask in going.values():
            left = left - mask
        for reason, mask in [*going.items(), (KEPT, left)]:
            found[Named(stage.value, reason, "pairs")] = Quantity(mask * pairs, is_of_pairs=True, is_count=True)
            found[Named(stage.value, reason, "images")] = Quantity(mask, is_of_pairs=False, is_count=True)
    nothing = np.zeros(images)
    found[Named(NOT_SEEN, NOT_SEEN, "pairs")] = Quantity(nothing, is_of_pairs=True, is_count=True)
    found[Named(NOT_SEEN, NOT_SEEN, "images")] = Quantity(nothing, is_of_pairs=False, is_count=True)
    amounts = {BYTES: outcomes.bytes, SHARD_BYTES: outcomes.shard_bytes, SECONDS: outcomes.seconds}
    for name, of in amounts.items():
        stage = "shards" if name == SHARD_BYTES else Stage.FETCH.value
        if of.any():
            found[Named(stage, KEPT, name)] = Quantity(of, is_of_pairs=False, is_count=False)
    return found


def _at(numbers: Sequence[int], images: int) -> Floats:
    mask = np.zeros(images)
    mask[numbers] = 1
    return mask

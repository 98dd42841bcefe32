"""What `write`, the making of runs of other runs, and `altalign score` leave: units, facts, and tables."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from altalign.data.schema import COUNTS, SAMPLE
from altalign.pipelines.run.image_tables import ChosenFacts
from altalign.pipelines.run.units import Facts, Marks, Table, Unit
from altalign.storage import Written

# Units, beside their names
ShardUnit = Unit  # a shard: how many `rows`, and `parts` of fetch units: name, first row and end
ShardOfParent = Unit  # a shard of a parent, or stretches of several: the number of the `parent`, and how many `rows`
CarriedUnit = Unit  # `files` of a `parent` that the new run has as they are, by their paths in the run
ScoreUnit = Unit  # a `shard`: its `rows`, SHA-256 of its side-car (`of`), `scores` that it lacks, `threads` for it


class ShardFacts(Facts):
    """Rows, sizes and digests of a shard, the number of its images, and the first and last image_id."""

    rows: int
    bytes: int
    source_bytes: dict[str, int]
    sha256: str
    parquet_bytes: int
    parquet_sha256: str
    images: int
    first_image: str
    last_image: str


class CarriedFacts(Facts):
    """How many bytes were copied."""

    bytes: int


class CommonFacts(Facts):
    """What runs that are merged have too much of together: texts, images; and what several of them have.

    That is pairs, images whose bytes differ from run to run, and pairs whose image one run lacks and another one has.
    """

    texts: int
    images: int
    pairs: int
    images_that_differ: int
    pairs_without_image: int = 0


class CountedFacts(Facts):
    """How many samples of a unit the condition keeps and have a value, for each column."""

    rows: list[int]


class ThresholdFacts(Facts):
    """For each column the smallest number (`select.ordered`) that stays; None where no sample has a value."""

    numbers: list[int | None]


class BalanceFacts(Facts):
    """The limit of concept balance, how many entries occur, and how often all of them do."""

    limit: int
    entries: int
    matches: int


class ScoreFacts(Facts):
    """The side-car that was scored, rows, and how many values of each column of each score are null."""

    of: str
    rows: int
    nulls: Mapping[str, Mapping[str, int]]


WRITTEN = Marks("write", ShardFacts)
CHOSEN = Marks("select/chosen", ChosenFacts)
CARRIED = Marks("select/carried", CarriedFacts)
COMMON = Marks("select/common", CommonFacts)
CONCEPTS = Marks("select/concepts", CountedFacts)
BALANCE = Marks("select/balance", BalanceFacts)
VALUES = Marks("select/values", CountedFacts)
THRESHOLDS = Marks("select/thresholds", ThresholdFacts)
STEPS = (WRITTEN, CONCEPTS, BALANCE, VALUES, THRESHOLDS, COMMON, CHOSEN, CARRIED)

SHARDS = Table("shards/*.tar", "of each pair KEY.jpg (or another image), KEY.txt and KEY.json")
SIDE_CARS = Table("shards/*.parquet", "the same pairs without images", SAMPLE)
COUNTS_OF_RUN = Table("counts.parquet", "rows by stage, source and reason", COUNTS)
SUMMARY = Table("summary.json", "the same in short")
LIST_OF_FILES = Table("files.jsonl", "size and digest of each file of the run")
CARD = Table("README.md", "the data-set card")
CROISSANT = Table("croissant.json", "the same for machines")
MANIFEST = Table("manifest.json", "the shards, versions and digests; written last")

_HASH = np.dtype(np.uint64)
# A key that several runs have, and the number of a run whose row goes.
REPEATED = pa.schema([("key", pa.string()), ("parent", pa.int32())])
CHOSEN_ROWS = Table("work/select/chosen/*.rows", "numbers of the rows that stay", np.dtype(np.int64))
COMMON_HASHES = {
    kind: Table(f"work/select/common/*.{kind}", f"hashes of {kind} over their limit, and counts", _HASH)
    for kind in ("texts", "images")
}
REPEATED_KEYS = Table("work/select/common/*.repeated", "keys that several runs have", REPEATED)
VALUES_OF_COLUMN = Table("work/select/values/*.values", "distinct values and how often, [2, k]")


def files_of(name: str, facts: ShardFacts) -> Iterator[tuple[str, Written]]:
    """The two files of a shard by their paths in the run."""
    yield f"shards/{name}.tar", Written(facts.bytes, facts.sha256)
    yield f"shards/{name}.parquet", Written(facts.parquet_bytes, facts.parquet_sha256)

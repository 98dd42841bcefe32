"""What `write`, the making of runs of other runs, and `altalign score` leave: units, facts, and tables."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from altalign.data.schema import COUNTS, SIDE_CAR
from altalign.pipelines.run.image_tables import ChosenFacts
from altalign.pipelines.run.units import Marks, Table, Unit
from altalign.storage import Written

# Units, beside their names
ShardUnit = Unit  # a shard: how many `rows`, and `parts` of fetch units: name, first row and end
ShardOfParent = Unit  # a shard of a parent: the number of the `parent`, and how many `rows`
ScoreUnit = Unit  # a `shard`: its `rows`, SHA-256 of its side-car (`of`), `scores` that it lacks, `threads` for it


class ShardFacts(NamedTuple):
    """Rows, sizes and digests of a shard, the number of its images, and the first and last image_id."""

    rows: int
    bytes: int
    source_bytes: Mapping[str, int]
    sha256: str
    parquet_bytes: int
    parquet_sha256: str
    images: int
    first_image: str
    last_image: str


class CountedFacts(NamedTuple):
    """How many samples of a unit the condition keeps and have a value, for each column."""

    rows: list[int]


class ScoreFacts(NamedTuple):
    """The side-car that was scored, rows, and how many values of each column of each score are null."""

    of: str
    rows: int
    nulls: Mapping[str, Mapping[str, int]]


WRITTEN = Marks("write", ShardFacts)
CHOSEN = Marks("select/chosen", ChosenFacts)
CONCEPTS = Marks("select/concepts", CountedFacts)
VALUES = Marks("select/values", CountedFacts)
STEPS = (WRITTEN, CONCEPTS, VALUES, CHOSEN)

SHARDS = Table("shards/*.tar", "of each pair, or image, KEY.jpg (or another image), KEY.txt and KEY.json")
SIDE_CARS = Table("shards/*.parquet", "the same pairs without images", SIDE_CAR)
COUNTS_OF_RUN = Table("counts.parquet", "rows by stage, source and reason", COUNTS)
SUMMARY = Table("summary.json", "the same in short")
LIST_OF_FILES = Table("files.jsonl", "size and digest of each file of the run")
CARD = Table("README.md", "the data-set card")
CROISSANT = Table("croissant.json", "the same for machines")
MANIFEST = Table("manifest.json", "the shards, versions and digests; written last")
CHOSEN_ROWS = Table("work/select/chosen/*.rows", "numbers of the rows that stay", np.dtype(np.int64))


def files_of(name: str, facts: ShardFacts) -> Iterator[tuple[str, Written]]:
    """The two files of a shard by their paths in the run."""
    yield f"shards/{name}.tar", Written(facts.bytes, facts.sha256)
    yield f"shards/{name}.parquet", Written(facts.parquet_bytes, facts.parquet_sha256)

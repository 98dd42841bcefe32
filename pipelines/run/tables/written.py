"""What `write` leaves: a mark for each shard."""

from collections.abc import Iterator
from dataclasses import dataclass

from altalign.data.schema import COUNTS, SAMPLE
from altalign.pipelines.run.tables.table import Format, Table
from altalign.pipelines.run.units import Facts, Marks, Unit
from altalign.storage import Written


class ShardUnit(Unit):
    """A shard: how many rows it has, and from which fetch units: name, first row and end."""

    rows: int
    parts: list[tuple[str, int, int]]


@dataclass(frozen=True)
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


def files_of(name: str, facts: ShardFacts) -> Iterator[tuple[str, Written]]:
    """The two files of a shard by their paths in the run."""
    yield f"shards/{name}.tar", Written(facts.bytes, facts.sha256)
    yield f"shards/{name}.parquet", Written(facts.parquet_bytes, facts.parquet_sha256)


WRITTEN = Marks("write", ShardFacts)
STEPS = (WRITTEN,)

SHARDS = Table("shards/*.tar", Format.TAR, holds="of each pair KEY.jpg (or another image), KEY.txt and KEY.json")
SIDE_CARS = Table("shards/*.parquet", Format.PARQUET, SAMPLE, "the same pairs without images")
COUNTS_OF_RUN = Table("counts.parquet", Format.PARQUET, COUNTS, "rows by stage, source and reason")
SUMMARY = Table("summary.json", Format.JSON, holds="the same in short")
LIST_OF_FILES = Table("files.jsonl", Format.JSON, holds="size and digest of each file of the run")
CARD = Table("README.md", Format.BYTES, holds="the data-set card")
CROISSANT = Table("croissant.json", Format.JSON, holds="the same for machines")
MANIFEST = Table("manifest.json", Format.JSON, holds="the shards, versions and digests; written last")

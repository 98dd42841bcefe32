"""What `altalign score` leaves while it is under way: a mark for each shard."""

from collections.abc import Mapping
from dataclasses import dataclass

from altalign.pipelines.run.units import Facts, Unit


class ScoreUnit(Unit):
    """A shard: its rows, its side-car's SHA-256, which scores it lacks, and threads for it."""

    shard: str
    rows: int
    of: str
    scores: list[str]
    threads: int


@dataclass(frozen=True)
class ScoreFacts(Facts):
    """The side-car that was scored, rows, and how many values of each column of each score are null."""

    of: str
    rows: int
    nulls: Mapping[str, Mapping[str, int]]

"""A run folder as its readers see it: settings, counts, dropped rows, side-cars, tables. Needs neither Beam nor the inputs."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.curation import CurateConfig
from altalign.errors import UsageError


@dataclass(frozen=True)
class RunFolder:
    """A run, finished or under way."""

    folder: str
    facts: dict[str, Any]  # run.json
    config: CurateConfig

    @classmethod
    def open(cls, folder: str) -> "RunFolder":
        """Open a run.

        Raises:
            UsageError: there is no such folder, or it is no run.
        """
        storage.check_local(folder)
        if not Path(folder).is_dir():
            raise UsageError(f"{folder}: no such run folder; give the [run] folder of a curation")
        facts = storage.read_json(storage.join(folder, "run.json"))
        if not facts:
            raise UsageError(f"{folder}: no run of altalign (it has no run.json); give the [run] folder of a curation")
        return cls(folder.rstrip("/"), facts, CurateConfig.load(Path(folder, "config.toml")))

    def path(self, *parts: str) -> str:
        """A path inside the run."""
        return storage.join(self.folder, *parts)

    @property
    def is_finished(self) -> bool:
        """Whether the manifest is there."""
        return storage.exists(self.path("manifest.json"))

    def dropped(self, matches: pc.Expression) -> Iterator[dict[str, Any]]:
        """Dropped rows that match, in the order of stages."""
        for stage in ("extract", "judge", "fetch", "image", "decontaminate"):
            yield from self._rows(storage.join("dropped", stage), matches)

    def samples(self, matches: pc.Expression) -> Iterator[dict[str, Any]]:
        """Rows of the side-cars that match, with the shard that holds them."""
        yield from self._rows("shards", matches)

    def _rows(self, folder: str, matches: pc.Expression) -> Iterator[dict[str, Any]]:
        for name in storage.names(self.path(folder), ".parquet"):
            with storage.open_read(self.path(folder, name)) as file:
                parquet = pq.ParquetFile(file)
                for group in range(parquet.num_row_groups):
                    rows: pa.Table = parquet.read_row_group(group, use_threads=False).filter(matches)
                    yield from ({**row, "in": f"{folder}/{name}"} for row in rows.to_pylist())

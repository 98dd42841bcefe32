"""Rows of a run that match: dropped ones and samples, from its Parquet files."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError
from audit.run_folder import RunFolder

DROPPED = ("extract", "judge", "fetch", "image", "decontaminate")  # folders, in the order of stages


def dropped(run: RunFolder, matches: pc.Expression) -> Iterator[dict[str, Any]]:
    """Dropped rows that match, in the order of stages."""
    for stage in DROPPED:
        yield from _rows(run, storage.join("dropped", stage), matches)


def samples(run: RunFolder, matches: pc.Expression) -> Iterator[dict[str, Any]]:
    """Rows of the side-cars that match, with the shard that holds them."""
    yield from _rows(run, "shards", matches)


def _rows(run: RunFolder, folder: str, matches: pc.Expression) -> Iterator[dict[str, Any]]:
    for name in storage.names(run.path(folder), ".parquet"):
        path = run.path(folder, name)
        try:
            with storage.open_read(path) as file:
                parquet = pq.ParquetFile(file)
                for group in range(parquet.num_row_groups):
                    rows: pa.Table = parquet.read_row_group(group, use_threads=False)
                    if len(rows) != (said := parquet.metadata.row_group(group).num_rows):  # where pages are damaged Arrow may end early without a word
                        raise pa.ArrowInvalid(f"{len(rows)} rows where its footer says {said}")
                    yield from ({**row, "in": f"{folder}/{name}"} for row in rows.filter(matches).to_pylist())
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise UnreadableError(f"{path}: cannot be read as Parquet ({reason})") from error

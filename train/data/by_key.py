"""Columns of a Parquet file, found by the keys of pairs: concepts and captions, in memory that processes share.

The file is sorted once to uncompressed Arrow in the folder of the run, which is mapped into memory.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.train.data.noise_estimates import Keys, missing, numbers_of


class ByKey:
    """Rows by their keys. Each of several processes maps the file anew."""

    def __init__(self, path: str, digest: str) -> None:
        """Of a file that `build` has written; `digest` is that of the Parquet file."""
        self._path, self.digest = path, digest
        self._mapped: pa.Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def keys(self) -> Keys:
        """All keys, in their order."""
        column = self._table.column("key").chunk(0)
        return np.frombuffer(column.buffers()[1], "S16")[: len(column)]  # pyright: ignore[reportAttributeAccessIssue]

    def rows(self, keys: Sequence[str]) -> list[dict[str, Any] | None]:
        """The row of each key, 32 hex digits; None where there is none."""
        known, wanted = self.keys, numbers_of(keys)
        found = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
        table = self._table
        return [
            table.slice(place, 1).to_pylist()[0] if len(known) and known[place] == key else None
            for place, key in zip(found.tolist(), wanted, strict=True)
        ]

    def missing(self, keys: Keys) -> int:
        """How many of some keys have no row."""
        return missing(self.keys, keys)

    @property
    def _table(self) -> pa.Table:
        if self._mapped is None:
            with pa.memory_map(self._path) as file:
                self._mapped = pa.ipc.open_file(file).read_all()
        return self._mapped


def check_there(given: str, *, setting: str, makes: str) -> None:
    """Refuse a setting that names a file that is not there.

    Raises:
        UsageError: saying which command makes it.
    """
    if not storage.exists(given):
        raise UsageError(f"{setting}: {given}: no such file; `{makes}` makes it, or leave the setting out")


def build(given: str, place: str, columns: Sequence[str], *, setting: str, makes: str) -> ByKey:
    """The rows of a Parquet file with a column `key`, sorted into a local file beside its digest, unless it is there.

    Raises:
        UsageError: there is no such file; `makes` says which command makes it.
        UnreadableError: it has not these columns.
    """
    check_there(given, setting=setting, makes=makes)
    data = storage.read_bytes(given)
    digest = sha256(data).hexdigest()
    if storage.read_json(f"{place}.json").get("digest") != digest or not storage.exists(place):
        try:
            table = pq.read_table(pa.BufferReader(data), columns=["key", *columns])
            keys = numbers_of([str(key) for key in table["key"].to_pylist()])
        except (pa.ArrowException, KeyError, ValueError) as error:
            said = " ".join(str(error).split())
            raise UnreadableError(f"{setting}: {given}: no columns key, {', '.join(columns)} ({said:.100})") from None
        order = np.argsort(keys, kind="stable")
        fixed = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(keys), [None, pa.py_buffer(keys[order].tobytes())]
        )
        rows = table.take(pa.array(order, pa.int64())).set_column(0, "key", fixed).combine_chunks()
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
        storage.write_bytes(place, sink.getvalue().to_pybytes())
        storage.write_json(f"{place}.json", {"digest": digest})
    return ByKey(place, digest)

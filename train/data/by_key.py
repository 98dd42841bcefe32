"""Tables by the keys of pairs, of noise, captions and concepts: written in parts, and looked up.

A table takes long to make, so a command that was stopped goes on:

    PLACE.parquet   the table, when all of it is there
    PLACE.json      what it is made of; written last
    parts/          rows that are made already, and asked.json, what they are made of

What looks rows up sorts the table once to uncompressed Arrow in the folder of the run, which processes map and share.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.errors import UnreadableError, UsageError
from altalign.train.data.index import Pairs
from altalign.train.data.samples import Samples
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import OF_RUN

MAKES = {  # the commands that make what settings name
    "[noise] estimates": "altalign nlip noise RUN",
    "[noise] captions": "altalign nlip caption RUN",
    "[captioner] concepts": "altalign nlip concepts",
}
NUMBERS = {"eps"}  # columns
PARTS = "parts"
_ENDING = ".parquet"

Keys = npt.NDArray[np.bytes_]  # 16 bytes each, which sort as their hex digits do


def numbers_of(keys: Sequence[str]) -> Keys:
    """Keys of 32 hex digits as bytes."""
    return np.frombuffer(bytes.fromhex("".join(keys)), "S16")


def keys_of(pairs: Pairs) -> Keys:
    """The keys of pairs of an index."""
    return np.ascontiguousarray(pairs["key"]).view("S16")[:, 0]


def names_of(keys: Keys) -> list[str]:
    """Keys as 32 hex digits each."""
    digits = np.ascontiguousarray(keys).tobytes().hex()
    return [digits[first : first + 32] for first in range(0, len(digits), 32)]


def in_order(samples: Samples) -> tuple[Keys, npt.NDArray[np.int64]]:
    """The keys of all pairs, in their order and each once, and the number of a pair of each."""
    keys = keys_of(samples.pairs(np.arange(len(samples), dtype=np.int64)))
    return np.unique(keys, return_index=True)


class ByKey:
    """Rows by their keys, of 32 hex digits. Each of several processes maps the file anew."""

    def __init__(self, path: str, digest: str) -> None:
        """Of a file that `opened` has written; `digest` is that of the Parquet file."""
        self._path, self.digest = path, digest
        self._mapped: pa.Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    def values(self, column: str, keys: Sequence[str]) -> list[Any]:
        """The value of a column for each key; None where there is no row."""
        return self._column(column, keys).to_pylist()

    def floats(self, column: str, keys: Sequence[str]) -> npt.NDArray[np.float32]:
        """The same of numbers; 0 where there is none: float32 (n,)."""
        return np.nan_to_num(np.asarray(self._column(column, keys).to_numpy(), np.float32))

    def check_has(self, samples: Samples, setting: str, path: str) -> None:
        """Raise UsageError where a pair has no row; setting and path name the table."""
        _, is_missing = self._places(keys_of(samples.pairs(np.arange(len(samples), dtype=np.int64))))
        if missing := int(np.count_nonzero(is_missing)):
            raise UsageError(
                f"{setting}: {path}: none of {missing:,} of the {len(samples):,} pairs; `{MAKES[setting]}` makes it "
                "of the same [data]"
            )

    @property
    def _keys(self) -> Keys:
        if not len(self._table):
            return np.empty(0, "S16")
        column = self._table.column("key").chunk(0)
        return np.frombuffer(column.buffers()[1], "S16")[: len(column)]  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def _table(self) -> pa.Table:
        if self._mapped is None:
            with pa.memory_map(self._path) as file:
                self._mapped = pa.ipc.open_file(file).read_all()
        return self._mapped

    def _places(self, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The row of each key, and whether it has none."""
        known = self._keys
        if not len(known):
            return np.zeros(len(keys), np.int64), np.full(len(keys), fill_value=True)
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return places, known[places] != keys

    def _column(self, column: str, keys: Sequence[str]) -> "pa.ChunkedArray[Any]":
        places, is_missing = self._places(numbers_of(keys))
        return self._table[column].take(pa.array(places, pa.int64(), mask=is_missing))


def path_of(given: str, file: str) -> str:
    """The table that a setting names: a Parquet file, or the folder of a training run (`run:FOLDER`) with this file."""
    folder = given.removeprefix(OF_RUN)
    return folder if folder.endswith(_ENDING) else storage.join(folder, file)


def check_there(path: str, setting: str) -> None:
    """Raise UsageError, with the command that makes it, where a setting names a file that is not there."""
    if not storage.exists(path):
        raise UsageError(f"{setting}: {path}: no such file; `{MAKES[setting]}` makes it, or leave the setting out")


def opened(path: str, place: str, columns: Sequence[str], setting: str) -> ByKey:
    """The rows of a Parquet file with a column `key`, sorted into a local file beside its digest, unless it is there.

    Raises UsageError where there is no such file, UnreadableError where it has not these columns.
    """
    check_there(path, setting)
    data = storage.read_bytes(path)
    digest = sha256(data).hexdigest()
    if storage.read_json(f"{place}.json").get("digest") != digest or not storage.exists(place):
        try:
            table = pq.read_table(pa.BufferReader(data), columns=["key", *columns])
            for place_of, name in enumerate(columns, 1):  # text that is no number is refused here, not in the middle
                if name in NUMBERS:
                    table = table.set_column(place_of, name, table[name].cast(pa.float32()))
            keys = numbers_of([str(key) for key in table["key"].to_pylist()])
        except (pa.ArrowException, KeyError, ValueError) as error:
            why = " ".join(str(error).split())
            raise UnreadableError(f"{setting}: {path}: no columns key, {', '.join(columns)} ({why:.100})") from None
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


def mark_of(place: str) -> str:
    """The file that says what a table is made of."""
    return f"{place.removesuffix(_ENDING)}.json"


def known(place: str) -> dict[str, Any]:
    """What a table is made of, or its parts so far; empty where there is neither."""
    return storage.read_json(mark_of(place)) or storage.read_json(_of_parts(place, "asked.json"))


def write(
    place: str,
    schema: pa.Schema,
    rows_of: Callable[[int, int], pa.Table],
    rows: int,
    *,
    source: Mapping[str, Any],
    size: int,
    ranks: Ranks,
    what: str,
) -> bool:
    """Write a table of so many rows, unless it is there; gives whether it was not. A collective: ranks take parts.

    `rows_of` makes the rows from a number to the one before another, `size` of them before a part is written: what a
    stop costs. `source` says what they are made of, as JSON holds it: a table or parts of anything else are made anew.
    """
    mark = _of_parts(place, "asked.json")
    if ranks.of_first(ranks.is_first and storage.read_json(mark_of(place)) == source and storage.exists(place)):
        if ranks.is_first:
            storage.delete(_of_parts(place))  # which a stop may have left
        return False
    if ranks.is_first:
        storage.delete(mark_of(place))
        if storage.read_json(mark) != source:
            storage.delete(_of_parts(place))
        storage.write_json(mark, source)
    ranks.wait()
    for part in range(ranks.rank, -(-rows // size), ranks.ranks):
        path, after = _of_parts(place, f"{part:07}{_ENDING}"), min(rows, (part + 1) * size)
        if not storage.exists(path):
            with storage.write(path) as file:
                pq.write_table(rows_of(part * size, after), file)
            terminal.stderr().print(f"{what} of {after:,} of {rows:,} pairs", soft_wrap=True)
    ranks.wait()
    if ranks.is_first:
        names = sorted(name for name in storage.entries(_of_parts(place)) if name.endswith(_ENDING))
        with storage.write(place) as file, pq.ParquetWriter(file, schema) as writer:
            for name in names:
                writer.write_table(pq.read_table(pa.BufferReader(storage.read_bytes(_of_parts(place, name)))))
        storage.write_json(mark_of(place), source)
        storage.delete(_of_parts(place))
    ranks.wait()
    return True


def _of_parts(place: str, *name: str) -> str:
    return storage.join(storage.folder_of(place), PARTS, *name)

"""Tables by the keys of pairs, of noise, captions and concepts: written in parts, and looked up.

A table takes long to make, so a command that was stopped goes on:

    PLACE.parquet   the table, when all of it is there
    PLACE.json      what it is made of; written last
    parts/          rows that are made already, and asked.json, what they are made of

What looks rows up sorts the table once to uncompressed Arrow in the folder of the run, which processes map and share.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage, terminal
from altalign.errors import UnreadableError, UsageError
from altalign.train.data.samples import Samples
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import OF_RUN

MAKES = {  # the commands that make what settings name
    "[noise] estimates": "altalign nlip noise RUN",
    "[noise] captions": "altalign nlip caption RUN",
    "[captioner] concepts": "altalign nlip concepts",
}
PARTS = "parts"
_ENDING = ".parquet"

Keys = npt.NDArray[np.bytes_]  # 16 bytes each, which sort as their hex digits do

# The rows of a table from a number to one before another; it calls the function with how many are made since.
RowsOf = Callable[[int, int, Callable[[int], None]], pa.Table]


def numbers_of(keys: Sequence[str]) -> Keys:
    """Keys of 32 hex digits as bytes."""
    return np.frombuffer(bytes.fromhex("".join(keys)), "S16")


def names_of(keys: Keys) -> list[str]:
    """Keys as 32 hex digits each."""
    digits = np.ascontiguousarray(keys).tobytes().hex()
    return [digits[first : first + 32] for first in range(0, len(digits), 32)]


def in_order(samples: Samples) -> tuple[Keys, npt.NDArray[np.int64]]:
    """The keys of all pairs, in their order and each once, and the number of a pair of each."""
    pairs = samples.pairs(np.arange(len(samples), dtype=np.int64))
    return np.unique(np.ascontiguousarray(pairs["key"]).view("S16")[:, 0], return_index=True)


class ByKey(NamedTuple):
    """A column of a table by the keys of pairs, of 32 hex digits."""

    path: str  # that `opened` has written
    column: str
    digest: str  # of the Parquet file

    def values(self, keys: Sequence[str]) -> list[Any]:
        """The value for each key; None where there is no row."""
        table, places = self.places(numbers_of(keys))
        return table[self.column].take(places).to_pylist()

    def floats(self, keys: Sequence[str]) -> npt.NDArray[np.float32]:
        """The same of numbers; 0 where there is none: float32 (n,)."""
        return np.nan_to_num(np.array(self.values(keys), np.float32))

    def places(self, keys: Keys) -> "tuple[pa.Table, pa.Array[Any]]":
        """The table, and the row of each key; null where it has none."""
        with pa.memory_map(self.path) as file:
            table = pa.ipc.open_file(file).read_all()
        if not len(table):
            return table, pa.nulls(len(keys), pa.int64())
        buffer = table.column("key").chunk(0).buffers()[1]  # pyright: ignore[reportAttributeAccessIssue]
        known = np.frombuffer(buffer, "S16")[: len(table)]
        places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return table, pa.array(places, pa.int64(), mask=known[places] != keys)


def path_of(given: str, file: str) -> str:
    """The table that a setting names: a Parquet file, or the folder of a training run (`run:FOLDER`) with this file."""
    folder = given.removeprefix(OF_RUN)
    return folder if folder.endswith(_ENDING) else storage.join(folder, file)


def check_there(path: str, setting: str) -> None:
    """Raise UsageError, with the command that makes it, where a setting names a file that is not there."""
    if not storage.exists(path):
        raise UsageError(f"{setting}: {path}: no such file; `{MAKES[setting]}` makes it, or leave the setting out")


def opened(path: str, place: str, column: str, setting: str, samples: Samples | None = None) -> ByKey:
    """A column of a Parquet file with a column `key`, sorted into a local file beside its digest, unless it is there.

    Raises UsageError where there is no such file, or no row of one of `samples`; UnreadableError where the file has not
    these columns.
    """
    check_there(path, setting)
    data = storage.read_bytes(path)
    by_key = ByKey(place, column, sha256(data).hexdigest())
    if storage.read_json(f"{place}.json").get("digest") != by_key.digest or not storage.exists(place):
        try:
            table = pq.read_table(pa.BufferReader(data), columns=["key", column])
            if column == "eps":  # text that is no number is refused here, not in the middle
                table = table.set_column(1, column, table[column].cast(pa.float32()))
            keys = numbers_of([str(key) for key in table["key"].to_pylist()])
        except (pa.ArrowException, KeyError, ValueError) as error:
            why = " ".join(str(error).split())
            raise UnreadableError(f"{setting}: {path}: no columns key, {column} ({why:.100})") from None
        order = np.argsort(keys, kind="stable")
        sorted_keys = pa.py_buffer(keys[order].tobytes())
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(keys), [None, sorted_keys])
        rows = table.take(pa.array(order, pa.int64())).set_column(0, "key", fixed).combine_chunks()
        with storage.write(place) as file, pa.ipc.new_file(pa.PythonFile(file), rows.schema) as writer:  # pyright: ignore[reportArgumentType]
            writer.write_table(rows)
        storage.write_json(f"{place}.json", {"digest": by_key.digest})
    if samples is not None and (missing := by_key.places(in_order(samples)[0])[1].null_count):
        raise UsageError(
            f"{setting}: {path}: none of {missing:,} of the {len(samples):,} pairs; `{MAKES[setting]}` makes it of the "
            "same [data]"
        )
    return by_key


def mark_of(place: str) -> str:
    """The file that says what a table is made of."""
    return f"{place.removesuffix(_ENDING)}.json"


def known(place: str) -> dict[str, Any]:
    """What a table is made of, or its parts so far; empty where there is neither."""
    return storage.read_json(mark_of(place)) or storage.read_json(storage.join(parts_of(place), "asked.json"))


def parts_of(place: str) -> str:
    """The folder of the parts of a table."""
    return storage.join(storage.folder_of(place), PARTS)


class Making(NamedTuple):
    """A table that ranks make in parts, of rows from a number to one before another. Its methods are collectives."""

    place: str
    source: Mapping[str, Any]  # what it is made of, as JSON holds it: a table or parts of anything else are made anew
    ranks: Ranks
    name: str  # of the bar, and of the lines, that say how far it is

    def write(self, schema: pa.Schema, rows_of: RowsOf, rows: int, *, size: int) -> bool:
        """Write the table of so many rows, unless it is there; gives whether it was not. A part has `size` rows."""
        place, ranks, mark = self.place, self.ranks, mark_of(self.place)
        is_there = ranks.is_first and storage.read_json(mark) == self.source and storage.exists(place)
        is_there = ranks.of_first(is_there)
        if ranks.is_first:  # a stop may have left parts of a table that is there
            storage.delete(parts_of(place) if is_there else mark)
        if is_there:
            return False
        parts = self.parts(rows_of, [*range(0, rows, size), rows])
        if ranks.is_first:
            with storage.write(place) as file, pq.ParquetWriter(file, schema) as writer:
                for part in parts:
                    writer.write_table(pq.read_table(pa.BufferReader(storage.read_bytes(part))))
            storage.write_json(mark, self.source)
            storage.delete(parts_of(place))
        ranks.wait()
        return True

    def parts(self, rows_of: RowsOf, bounds: Sequence[int]) -> list[str]:
        """Write the parts that are not there yet, between two of `bounds` each, and give the paths of all."""
        folder, ranks = parts_of(self.place), self.ranks
        mark = storage.join(folder, "asked.json")
        if ranks.is_first and storage.read_json(mark) != self.source:
            storage.delete(folder)
            storage.write_json(mark, self.source)
        ranks.wait()
        paths = {part: storage.join(folder, f"{part:07}{_ENDING}") for part in range(len(bounds) - 1)}
        own = [part for part in list(paths)[ranks.rank :: ranks.ranks] if not storage.exists(paths[part])]
        console, left = terminal.stderr(), sum(bounds[part + 1] - bounds[part] for part in own)
        with terminal.progress_bar(self.name, left, "pairs") as advance:
            for part in own:
                first, after = bounds[part], bounds[part + 1]
                with storage.write(paths[part]) as file:
                    pq.write_table(rows_of(first, after, advance), file)
                if not console.is_terminal:
                    console.print(f"{self.name}: {after:,} of {bounds[-1]:,} pairs", soft_wrap=True)
        ranks.wait()
        return [storage.join(folder, name) for name in storage.names(folder, _ENDING)]

"""Reads every file of a run again after a removal, and looks for keys, digests and URLs of what went.

Parquet: every column of strings. Tars: names of members, rows and the digests of images. Other files: every word of 32
or 64 hex digits, and every URL. Left out are arrays of hashes (`tables/`), 64 bits of a text or an image each, and what
lies in `.change/`.
"""

import re
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from altalign import storage
from altalign.data import shards
from altalign.errors import UnreadableError
from altalign.machine import interrupts, processes
from altalign.machine.cores import cores
from altalign.pipelines.change.rows_to_remove import at_once
from altalign.pipelines.run.removal_list import Request
from altalign.storage import parquet
from altalign.storage.atomic_change import FOLDER

_WORDS = re.compile(rb"(?i:https?:)?//[^\s\"'<>\\)]+|[0-9a-f]{32,}")
_AT_ONCE_BYTES = 4 << 20
_IN_STORE = 6  # files at a time, each with as much in memory as is read ahead
_ARRAYS = (".npy",)
SECONDS_PER_PAIR = 3e-5  # of one core, about, of a run in a store; on a disk less


class Looked(NamedTuple):
    """How many files and bytes were read, and where something was found: the file, and a line on what."""

    files: int
    bytes: int
    found: dict[str, str]


def look(run_folder: str, gone: Request, *, but: str) -> Looked:
    """Look through all files of a run but one, which names what went by its hashes."""
    names = [storage.relative(path, run_folder) or path for path in sorted(storage.files_below(run_folder))]
    names = [name for name in names if name != but and not name.startswith(f"{FOLDER}/") and not name.endswith(_ARRAYS)]
    strings = frozenset({*gone.keys, *gone.images, *gone.hashes, *gone.urls.values()})
    seconds = SECONDS_PER_PAIR * storage.read_json(storage.join(run_folder, "manifest.json")).get("pairs", 0)
    look_at = partial(_look_at, run_folder, strings, gone)
    files = max(cores(), at_once(run_folder, in_store=_IN_STORE))
    looked = processes.spread(look_at, names, seconds=seconds, at_once=files)
    found = {name: what for name, (_, what) in zip(names, looked, strict=True) if what}
    return Looked(len(names), sum(size for size, _ in looked), found)


def _look_at(run_folder: str, strings: frozenset[str], gone: Request, name: str) -> tuple[int, str]:
    """The size of a file, and what was found in it."""
    path = storage.join(run_folder, *name.split("/"))
    try:
        return storage.stamp(path).size, next(_in_file(path, strings, gone), "")
    except FileNotFoundError:  # of another command, such as its lock in a store
        return 0, ""
    except (ValueError, OSError, UnreadableError) as error:
        return 0, f"it cannot be read ({error})"


def _in_file(path: str, strings: frozenset[str], gone: Request) -> Iterator[str]:
    if path.endswith(".parquet"):
        return _in_parquet(path, strings, gone)
    return _in_tar(path, strings, gone) if path.endswith(".tar") else _in_text(path, strings, gone)


def _in_parquet(path: str, strings: frozenset[str], gone: Request) -> Iterator[str]:
    wanted = pa.array(list(strings), pa.string())
    for batch in parquet.read_whole(path):
        interrupts.check()
        flat: dict[str, Any] = {
            name: pc.list_flatten(column) if pa.types.is_list(column.type) else column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        flat = {name: column for name, column in flat.items() if pa.types.is_string(column.type)}
        # at once: what is wanted is arranged for the search anew each time
        together = pa.chunked_array(list(flat.values()), pa.string())
        yield from _first(together, pc.is_in(together, value_set=wanted))
        for name, column in flat.items() if gone.domains or gone.urls else ():
            if name.endswith("_url"):
                yield from _first(column, pa.array(gone.matches(pa.table({"image_url": column}))))


def _first(column: Any, mask: Any) -> list[str]:
    return column.filter(mask).to_pylist()[:1]


def _in_tar(path: str, strings: frozenset[str], gone: Request) -> Iterator[str]:
    wanted = frozenset(map(str.encode, strings))
    for members in shards.members(storage.read_pieces(path)):
        interrupts.check()
        if gone.domains or gone.urls or _may_have(members, strings, wanted, gone):
            yield from _in_sample(shards.decoded(members), strings, gone)


def _may_have(members: shards.Members, strings: frozenset[str], wanted: frozenset[bytes], gone: Request) -> bool:
    """Whether a sample may have one of the strings: its JSON is parsed only then, which takes most of the time.

    Where nothing is escaped, every string stands between two quotation marks, as it is.

    Raises:
        ValueError: the members are not those of a sample.
    """
    key = shards.key_of(members)
    (_, image), _, (_, row) = members
    parts = row.split(b'"')
    return (
        b"\\" in row
        or len(parts) % 2 == 0  # it is damaged, as parsing it will say
        or not wanted.isdisjoint(parts)
        or key in strings
        or (bool(gone.hashes) and sha256(image).hexdigest() in strings)
    )


def _in_sample(sample: shards.Sample, strings: frozenset[str], gone: Request) -> Iterator[str]:
    row = sample.row
    there = [*row.values(), sha256(sample.image).hexdigest()] if gone.hashes else row.values()
    if not strings.isdisjoint(there):
        yield from sorted(strings.intersection(there))[:1]
    yield from (url for name in ("image_url", "page_url") if (url := row[name]) and _is_named(url, gone))


def _in_text(path: str, strings: frozenset[str], gone: Request) -> Iterator[str]:
    before = b""
    with storage.open_read(path) as file:
        while data := file.read(_AT_ONCE_BYTES):
            interrupts.check()
            for match in _WORDS.finditer(before + data):
                word = match[0].decode(errors="replace")
                if word in strings or _is_named(word, gone):
                    yield word
            before = data[-(8 << 10) :]  # a URL has 8 KiB at most


def _is_named(url: str, gone: Request) -> bool:
    return gone.has_host_of(url) or gone.has_url(url)

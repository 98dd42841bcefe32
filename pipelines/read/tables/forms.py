"""The forms of tables: told by the names of files, with or without compression."""

from pathlib import PurePath
from typing import BinaryIO, Literal

from altalign import storage
from altalign.errors import UsageError
from altalign.pipelines.read.compressed import Compression, decompressed
from altalign.pipelines.read.stretches import readable, unreadable

Form = Literal["parquet", "arrow", "csv", "tsv", "jsonl"]

_FORMS: dict[str, Form] = {
    **{".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow"},
    **{".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"},
}
BINARY = ("parquet", "arrow")
_GZIP = b"\x1f\x8b"
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}


def form_of(path: str) -> Form:
    """The format of a table, from the name of its file.

    Raises:
        UsageError: the name has no ending of a table.
    """
    name = PurePath(storage.name(path))
    compressed = name.suffix.lower() in _COMPRESSIONS
    form = _FORMS.get((PurePath(name.stem) if compressed else name).suffix.lower())
    if form is None or (compressed and form in BINARY):
        endings = (
            "it should end in .parquet, .arrow, .csv, .tsv or .jsonl, the last three also in .gz or .zst after that"
        )
        raise UsageError(f"{path}: not the name of a table; {endings}")
    return form


def is_named_as_table(path: str) -> bool:
    """Whether the name of a file is that of a table."""
    try:
        form_of(path)
    except UsageError:
        return False
    return True


def is_empty(path: str) -> bool:
    """Whether a table has no bytes; such a file has no rows."""
    with readable(path, "a table"):
        return storage.stamp(path).size == 0


def opened(path: str) -> BinaryIO:
    """A table of text, decompressed."""
    name = PurePath(storage.name(path))
    file, compression = storage.open_read(path), _COMPRESSIONS.get(name.suffix.lower())
    begins = file.read(len(_GZIP))
    file.seek(0)
    meant = ""
    if begins == _GZIP and compression is None:
        meant = f"gzip by its first bytes: rename it to {name.name}.gz"
    if begins != _GZIP and compression == "gzip" and begins.isascii() and begins.decode("ascii").isprintable():
        meant = f"not gzip by its first bytes: rename it to {name.stem}"
    if meant:
        file.close()
        unreadable(path, meant)
    return decompressed(file, compression) if compression else file

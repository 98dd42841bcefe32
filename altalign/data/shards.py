"""The shard format: a tar of samples and its Parquet side-car, written and read without Beam or torch.

A sample is three members in this order: KEY.<image's extension>, KEY.txt (the caption, UTF-8, no newline at the end)
and KEY.json (the row of `SAMPLE` as one line of UTF-8 JSON, keys in its order, no newline). A URL that is
null is "" in the JSON: Hugging Face `datasets` takes a key's type from the first five samples, and fails, or changes
values, where a later one has another. So is a null `source_key`; and `extra` is text here too, for its keys and types
may differ from pair to pair. `preferences` are the text of a JSON list, for the same reason.

With `[shards] captions = "all"` a sample is an image with all its captions: KEY and KEY.txt are those of the first pair
by key, and KEY.json has three more lists, `OF_CAPTIONS`. The side-car goes on to have a row for each pair, all with the
place of the one image.

The bytes depend on the samples alone: USTAR headers have a fixed time, owner and mode, and two zero blocks end the
tar. Names are far below 100 bytes and images below 8 GiB, so no extended header is ever needed.
"""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from altalign.data.schema import SAMPLE, SIDE_CAR, SampleRow

# The extension of each image format. JPEG is jpg, which every reader knows (open_clip reads jpg, png, jpeg and webp).
EXTENSIONS: Mapping[str, str] = {
    "jpeg": "jpg",
    "png": "png",
    "webp": "webp",
    "gif": "gif",
    "avif": "avif",
    "bmp": "bmp",
    "tiff": "tiff",
}

# names of images, also of formats that cannot be decoded: these have to be converted
IMAGE_NAMES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".avif", ".bmp", ".dib", ".tif", ".tiff",
    ".heic", ".heif", ".jp2", ".j2k", ".jxl", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".svg", ".ico", ".psd",
)  # fmt: skip
# what macOS and tars that were unpacked by old programs add beside each file: its attributes
BESIDE = re.compile(r"(^|/)(\._[^/]*|__MACOSX(/.*)?|PaxHeaders?(\.\d+)?/.*)$")

_BLOCK = tarfile.BLOCKSIZE
_READ_BYTES = 1 << 20
_MODIFIED_S = 315_532_800  # 1980-01-01, the oldest time every archiver takes without a warning
NULLABLE = ("image_url", "page_url", "source_key", "extra", "preferences")  # no other column of a sample is ever null
OF_CAPTIONS = ("captions", "caption_keys", "caption_shares")  # of an image: texts, keys of their pairs, shares of 1
_COLUMNS, _SUFFIXES = tuple(SAMPLE.names), frozenset(EXTENSIONS.values())
Members = list[tuple[str, bytes]]  # of a sample: names and contents
_AS_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True)
class Sample:
    """One sample as a shard holds it: the image's bytes, the caption, and the side-car's row."""

    image: bytes
    caption: str
    row: SampleRow
    captions: Mapping[str, Sequence[Any]] | None = None  # `OF_CAPTIONS`, where the sample has all of its image

    @property
    def key(self) -> str:
        """The sample's key, 32 hex digits."""
        return self.row["key"]


class ShardWriter:
    """Writes samples to a binary file, and keeps its size and digest.

    It only appends, so an upload will do. `end()` writes the end of the archive; without it the file is no tar.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, sha256()
        self.bytes = 0  # of the archive so far
        self.rows = 0

    @property
    def sha256(self) -> str:
        """SHA-256 of the archive so far, in lower-case hex."""
        return self._digest.hexdigest()

    def write(self, image: bytes, row: Mapping[str, Any]) -> SampleRow:
        """Append one sample; returns the side-car's row, in the order of `SAMPLE`.

        `row` has the columns of `SAMPLE`; `tar_offset` and `tar_bytes` are overwritten here, and an empty string
        becomes null where a column may be null. ValueError, and nothing is written, where its format is unknown, its
        text is not Unicode (a lone surrogate), a column that is never null is, or the image has 8 GiB or more.
        """
        row = self._row(image, row)
        self._append_sample(image, row, {})
        return row

    def write_all(self, image: bytes, rows: Sequence[Mapping[str, Any]], shares: Sequence[float]) -> list[SampleRow]:
        """The same of an image with the rows of all its captions, in the order of keys, and the share of each."""
        of_pairs = [self._row(image, row) for row in rows]
        captions, keys = ([row[name] for row in of_pairs] for name in ("caption", "key"))
        self._append_sample(image, of_pairs[0], dict(zip(OF_CAPTIONS, (captions, keys, list(shares)), strict=True)))
        return of_pairs

    def _row(self, image: bytes, row: Mapping[str, Any]) -> SampleRow:
        row = {**row, "tar_offset": self.bytes + _BLOCK, "tar_bytes": len(image)}
        row = {name: None if name in NULLABLE and row[name] == "" else row[name] for name in _COLUMNS}
        if unknown := [name for name, value in row.items() if value is None and name not in NULLABLE]:
            raise ValueError(f"{row['key']}: {', '.join(unknown)} must not be null")
        return row

    def _append_sample(self, image: bytes, row: SampleRow, more: Mapping[str, Any]) -> None:
        key = row["key"]
        header = _header(f"{key}.{extension(row['format'])}", len(image))
        texts_of = {name: "" for name in NULLABLE if row[name] is None}  # in the JSON; its text is never null
        if row["preferences"] is not None:
            texts_of["preferences"] = _AS_JSON.encode(row["preferences"])
        texts = _member(f"{key}.txt", row["caption"].encode())
        texts += _member(f"{key}.json", _AS_JSON.encode({**row, **texts_of, **more}).encode())
        self._append(header, image, bytes(-len(image) % _BLOCK), texts)
        self.rows += 1

    def copy(self, sample: bytes, key: str, tar_offset: int) -> int:
        """Append a sample, the bytes from its first header to the next one's in another shard.

        Its image was at `tar_offset` there; returns where it is in this one, which is all that differs.
        """
        place = self.bytes + _BLOCK
        before, after = (b'"tar_offset":%d,' % at for at in (tar_offset, place))
        at = sample.rfind(before)  # in KEY.json, the last member
        if at < 0 or not sample.startswith(key.encode()):
            raise ValueError(f"{key}: the tar does not have this sample where its side-car says")
        moved = sample[:at] + after + sample[at + len(before) :]
        if len(before) != len(after):
            begin = sample.rindex(f"{key}.json\0".encode())
            moved = sample[:begin] + _member(f"{key}.json", moved[begin + _BLOCK :].rstrip(b"\0"))
        self._append(moved)
        self.rows += 1
        return place

    def end(self) -> None:
        """Append the two zero blocks that end an archive."""
        self._append(bytes(2 * _BLOCK))

    def _append(self, *parts: bytes) -> None:
        data = b"".join(parts)  # each call that writes or digests releases Python's lock
        self._file.write(data)
        self._digest.update(data)
        self.bytes += len(data)


def table_of(rows: Iterable[Mapping[str, object]]) -> pa.Table:
    """The samples of a shard: the rows that `ShardWriter.write` returned, in their order."""
    return pa.Table.from_pylist([dict(row) for row in rows], SAMPLE)


def sidecar_of(samples: pa.Table, tar: str) -> pa.Table:
    """The side-car of a tar of this name, which lies beside it: a table of `SIDE_CAR`, of one of `SAMPLE`."""
    joined: Any = pc.binary_join_element_wise
    media_types, checksums = joined("image/", samples["format"], ""), joined("SHA-256:", samples["sha256"], "")
    parts: list[Any] = [tar, samples["tar_offset"], samples["tar_bytes"], media_types, checksums]
    kind = SIDE_CAR.field("image")
    return samples.append_column(kind, pc.make_struct(*parts, field_names=[part.name for part in kind.type]))


def write_sidecar(rows: Iterable[Mapping[str, object]] | pa.Table, file: BinaryIO, tar: str) -> None:
    """Write the side-car of a tar of this name in Parquet (zstd), from its rows or as `table_of` makes it."""
    samples = rows if isinstance(rows, pa.Table) else table_of(rows)
    pq.write_table(sidecar_of(samples, tar), file, compression="zstd", compression_level=3)


def pair_range(tar_offset: int, tar_bytes: int, caption_bytes: int) -> tuple[int, int]:
    """Offset and length, in bytes, of the one read that covers an image and what follows it, to its `caption_bytes`."""
    return tar_offset, tar_bytes + -tar_bytes % _BLOCK + _BLOCK + caption_bytes


def read_pair(data: bytes, *, key: str, tar_bytes: int, caption_bytes: int) -> tuple[bytes, str]:
    """Image and caption in `data`, the bytes of `pair_range`.

    ValueError where the bytes are not of that pair: the tar is cut, or is not the side-car's.
    """
    _, length = pair_range(0, tar_bytes, caption_bytes)
    caption_at = length - caption_bytes
    header = data[caption_at - _BLOCK : caption_at]
    if len(data) == length:
        if header.startswith(f"{key}.txt\0".encode()) and header[124:135] == b"%011o" % caption_bytes:
            return data[:tar_bytes], data[caption_at:].decode()
        with suppress(ValueError, KeyError, TypeError):
            (_, _), (_, row) = _members(iter([data[caption_at - _BLOCK :], bytes(_BLOCK)]))
            captions, keys = (json.loads(row)[name] for name in OF_CAPTIONS[:2])
            return data[:tar_bytes], str(captions[keys.index(key)])
    raise ValueError(
        f"{key}: the tar does not have this pair where its side-car says; read it again from where it was written"
    )


def samples(tar_file: BinaryIO) -> Iterator[Sample]:
    """The samples of a shard in order, from the tar alone. It only reads forward, so a pipe will do.

    ValueError where it is a cut tar or none, or a sample is not an image, a txt and a json of one key, in this order.
    """
    pieces = iter(lambda: tar_file.read(_READ_BYTES), b"")
    return map(decoded, members(pieces))


def members(tar: Iterable[bytes]) -> Iterator[Members]:
    """The same of a tar in pieces, each sample as its three members, whose names and content nobody has looked at."""
    sample: Members = []
    for member in _members(iter(tar)):
        sample.append(member)
        if len(sample) == 3:
            yield sample
            sample = []
    if sample:
        raise ValueError(f"{sample[0][0]}: the last sample has {len(sample)} of its 3 members")


def decoded(members: Members) -> Sample:
    """The sample of three members; ValueError as of `key_of`, or where the json is none of that key."""
    key = key_of(members)
    (_, image), (_, txt), (_, row) = members
    columns = json.loads(row)
    if tuple(columns) not in (_COLUMNS, _COLUMNS + OF_CAPTIONS):
        raise ValueError(f"{key}.json: its keys are not the columns of a side-car")
    if columns["key"] != key:
        raise ValueError(f"{key}.json: it is the row of {columns['key']}")
    columns |= {name: columns[name] or None for name in NULLABLE}
    columns["preferences"] = columns["preferences"] and json.loads(columns["preferences"])
    captions = {name: columns.pop(name) for name in OF_CAPTIONS if name in columns}
    return Sample(image, txt.decode(), columns, captions or None)


def key_of(members: Members) -> str:
    """The key in the names of three members; ValueError where they are no image, txt and json of one key, in order."""
    (image_name, _), (txt_name, _), (json_name, _) = members
    key, _, suffix = image_name.partition(".")
    if suffix not in _SUFFIXES or txt_name != f"{key}.txt" or json_name != f"{key}.json":
        raise ValueError(f"{image_name}, {txt_name}, {json_name}: not an image, a txt and a json of one key")
    return key


def extension(image_format: str) -> str:
    """The file extension, without a dot, of an image format."""
    if image_format not in EXTENSIONS:
        raise ValueError(f"image format {image_format!r}: there are {', '.join(EXTENSIONS)}")
    return EXTENSIONS[image_format]


def _member(name: str, content: bytes) -> bytes:
    return b"".join((_header(name, len(content)), content, bytes(-len(content) % _BLOCK)))


def _header(name: str, size: int) -> bytes:
    """The 512 bytes before a member's content."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, _MODIFIED_S, 0o644
    try:
        return member.tobuf(tarfile.USTAR_FORMAT)
    except ValueError:
        raise ValueError(f"{name}: {size:,} bytes, more than a plain tar header can say (8 GiB)") from None


def _members(pieces: Iterator[bytes]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member of a tar that has plain files alone, and no extended headers."""
    held, at = b"", 0
    while True:
        if at + _BLOCK > len(held):
            held, at = _longer(held, at, _BLOCK, pieces), 0
        header = held[at : at + _BLOCK]
        if not any(header):
            return
        try:
            name, size = header[: header.index(0)].decode("ascii"), int(header[124:135], 8)
            is_whole = int(header[148:154], 8) == sum(header[:148]) + 8 * 32 + sum(header[156:])
        except ValueError:
            name, size, is_whole = "", 0, False
        if not is_whole or header[156:157] not in b"0\0":
            raise ValueError("not a whole tar: a header is damaged, or not of a plain file")
        begin, blocks = at + _BLOCK, size + -size % _BLOCK
        if begin + blocks > len(held):
            held, begin = _longer(held, begin, blocks, pieces), 0
        at = begin + blocks
        yield name, held[begin : begin + size]


def _longer(held: bytes, at: int, size: int, pieces: Iterator[bytes]) -> bytes:
    """What is held from a position on, with pieces behind it until it has so many bytes."""
    parts = [held[at:]]
    missing = size - len(parts[0])
    while missing > 0:
        if not (more := next(pieces, b"")):
            raise ValueError("not a whole tar: it ends before a member or the archive does")
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)

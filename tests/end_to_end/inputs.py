"""Pools of candidates as the files that a run reads: tables of every form, tars and web archives, with small pictures
in them.
"""

import csv
import gzip
import hashlib
import html
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as budget
from hypothesis import strategies as st
from PIL import Image

from tests.reference.curation import Candidate, ImageFacts
from tests.strategies import SHA256S
from tests.support.archives import response
from tests.support.tars import tar


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """So many examples of a strategy, the same every time: for runs that are too slow to be one example each."""
    found: list[Any] = []

    slow = (HealthCheck.too_slow, HealthCheck.data_too_large)

    @budget(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=count,
        phases=[Phase.generate],
        suppress_health_check=slow,
    )
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found


# Pictures -------------------------------------------------------------------------------------------------------------

# Limits that the pictures below stand on either side of.
IMAGE_LIMITS = {"short_side_above_px": 20, "aspect_ratio_below": 3.0, "pixels_at_most": 10_000}


@dataclass(frozen=True)
class Picture:
    """Bytes of an image, what is known of them, and the format, size and colour of it upright."""

    name: str
    bytes: bytes
    facts: ImageFacts
    upright: tuple[int, int] = (0, 0)
    colour: tuple[int, int, int] = (0, 0, 0)

    @property
    def sha256(self) -> str:
        """In lower-case hex."""
        return hashlib.sha256(self.bytes).hexdigest()


@cache
def pictures() -> dict[str, Picture]:
    """One picture for each thing that can be true of an image, by name."""
    found = [
        _picture("jpeg", "jpeg", (40, 30), (200, 30, 30)),
        _picture("jpeg on its side", "jpeg", (40, 30), (200, 90, 30), orientation=6),
        _picture("png", "png", (31, 62), (30, 200, 30)),
        _picture("png on its side", "png", (40, 30), (30, 200, 90), orientation=6),
        _picture("webp", "webp", (64, 48), (30, 30, 200)),
        _picture("gif", "gif", (33, 33), (90, 90, 30)),
        _picture("bmp", "bmp", (40, 41), (90, 30, 90)),
        _picture("tiff", "tiff", (50, 40), (30, 90, 90)),
        _picture("avif", "avif", (48, 50), (120, 120, 120)),
        _picture("ratio below 3", "png", (92, 31), (10, 60, 110)),
        _picture("ratio of 3", "png", (93, 31), (110, 60, 10)),
        _picture("short side of 20", "jpeg", (20, 30), (60, 10, 110)),
        _picture("small and elongated", "png", (60, 10), (60, 110, 10)),
        _picture("pixels at the limit", "png", (100, 100), (1, 2, 3)),
        _picture("too many pixels", "png", (101, 100), (3, 2, 1)),
        _picture("too many pixels and elongated", "jpeg", (700, 21), (2, 1, 3)),
        _cut(_picture("cut jpeg", "jpeg", (44, 33), (5, 5, 5)), 20),
        _cut(_picture("cut and small png", "png", (44, 19), (7, 7, 7)), 40),
        _cut(_picture("cut, and too many pixels to see it", "png", (100, 101), (9, 9, 9)), 40),
        Picture("page", b"<!doctype html><p>no image", ImageFacts(format=None)),
        Picture("svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="300" height="300"/>', ImageFacts(format=None)),
    ]
    blocked = _picture("blocked", "png", (40, 44), (250, 250, 0))
    digests = {hashlib.md5(blocked.bytes).hexdigest(), blocked.sha256}
    found.append(replace(blocked, facts=replace(blocked.facts, hashes=frozenset(digests))))
    return {picture.name: picture for picture in found}


def _picture(
    name: str, kind: str, size: tuple[int, int], colour: tuple[int, int, int], *, orientation: int = 1
) -> Picture:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", size, colour).save(file, kind.upper(), **({"exif": exif} if orientation > 1 else {}))
    upright = size if orientation < 5 else (size[1], size[0])
    return Picture(name, file.getvalue(), ImageFacts(format=kind, width=size[0], height=size[1]), upright, colour)


def _cut(whole: Picture, missing: int) -> Picture:
    """Without its last bytes, some of its pixels among them; the header, and so the size, is there."""
    return replace(whole, bytes=whole.bytes[:-missing], facts=replace(whole.facts, damaged=True))


@cache
def picture_of(sha256: str) -> Picture:
    """The picture of these bytes."""
    return next(picture for picture in pictures().values() if picture.sha256 == sha256)


def with_pictures(candidates: Sequence[Candidate], turn: int = 0) -> list[Candidate]:
    """The made-up digests of an image in hand replaced by those of pictures, which bytes have."""
    digests = [picture.sha256 for picture in pictures().values()]
    of = {digest: digests[(turn + number) % len(digests)] for number, digest in enumerate(SHA256S)}
    return [replace(c, image_sha256=None if c.image_sha256 is None else of[c.image_sha256]) for c in candidates]


KEPT = 'ключ "'  # the column that every table and tar keeps

# Candidates into files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One [[input]] of one file.

    Candidates in its order; of an archive also (URL, name of the picture) of its images, after the pages.

    `form` is the ending of the file's name; "images.parquet" is a table with a column of bytes.
    """

    source: str
    form: str
    candidates: Sequence[Candidate]
    archived: Sequence[tuple[str, str]] = ()

    @property
    def kind(self) -> str:
        """The kind of input."""
        return {"warc.gz": "warc", "tar": "webdataset"}.get(self.form, "table")

    def held(self) -> list[Candidate]:
        """The candidates as such a file can hold them, which is what readers have to find."""
        has_pages = any(candidate.page_url is not None for candidate in self.candidates)
        return [replace(_HELD[self.form](c, has_pages), source=self.source, kind=self.kind) for c in self.candidates]


def _in_text(candidate: Candidate, has_pages: bool) -> Candidate:  # noqa: FBT001
    """CSV knows no null: a column is there or not."""
    page = candidate.page_url or "" if has_pages else None
    return replace(
        candidate,
        image_url=candidate.image_url or "",
        caption_raw=candidate.caption_raw or "",
        page_url=page,
        image_sha256=None,
    )


def _in_tsv(candidate: Candidate, has_pages: bool) -> Candidate:  # noqa: FBT001
    plain = _in_text(candidate, has_pages)
    named = {name: getattr(plain, name) for name in ("image_url", "caption_raw", "page_url")}
    return replace(
        plain, **{name: value and value.translate({9: " ", 10: " ", 13: " "}) for name, value in named.items()}
    )


def _in_tar(candidate: Candidate, _: bool) -> Candidate:  # noqa: FBT001
    """A byte order mark at the start of a text is none of it."""
    caption = candidate.caption_raw
    return replace(candidate, page_url=None, caption_raw=None if caption is None else caption.lstrip("\ufeff"))


def _in_page(candidate: Candidate, _: bool) -> Candidate:  # noqa: FBT001
    """HTML has no U+0000, and every page a URL; white space around an image's URL is none of it."""
    caption, url = candidate.caption_raw, candidate.image_url
    return replace(
        candidate,
        image_url=None if url is None or not url.strip() else url.strip(),
        caption_raw=None if caption is None else caption.replace("\0", "\ufffd"),
        page_url=candidate.page_url or "http://p.example/",
        image_sha256=None,
    )


def _as_it_is(candidate: Candidate, _: bool) -> Candidate:  # noqa: FBT001
    return candidate


def _without_image(candidate: Candidate, _: bool) -> Candidate:  # noqa: FBT001
    return replace(candidate, image_sha256=None)


_HELD: Mapping[str, Callable[[Candidate, bool], Candidate]] = {
    "parquet": _without_image,
    "images.parquet": _as_it_is,
    "csv": _in_text,
    "csv.gz": _in_text,
    "tsv": _in_tsv,
    "jsonl": _without_image,
    "jsonl.zst": _without_image,
    "tar": _in_tar,
    "warc.gz": _in_page,
}


def placed(parts: Sequence[Part]) -> tuple[list[Candidate], dict[str, Picture]]:
    """All candidates with their input positions, and the first picture of each identity in input order."""
    candidates: list[Candidate] = []
    found: dict[str, Picture] = {}
    for number, part in enumerate(parts):
        for row, candidate in enumerate(part.held()):
            named = {"source_key": _name(number, part, row), "extra": _extra(part, row)}
            candidates.append(replace(candidate, position=len(candidates), **named))
            if candidate.identity is not None and candidate.image_sha256 is not None:
                found.setdefault(candidate.identity, picture_of(candidate.image_sha256))
        for url, name in part.archived:
            found.setdefault(url, pictures()[name])
    return candidates, found


def _file(number: int, part: Part) -> str:
    return f"input-{number:03d}.{part.form}"


def _name(number: int, part: Part, row: int) -> str | None:
    of_kind = {"table": f"{_file(number, part)}#{row}", "webdataset": f"{_file(number, part)}#{row:06d}"}
    return of_kind.get(part.kind)


def _extra(part: Part, row: int) -> str | None:
    """What an input keeps of `KEPT`: numbers, and text as CSV and TSV have it."""
    if part.kind == "warc":
        return None
    value = f'"{row}"' if part.form in ("csv", "csv.gz", "tsv") else row
    return f'{{"ключ \\"":{value}}}'


def write_parts(folder: Path, parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Write one file a part; returns the [[input]] of each."""
    inputs = []
    for number, part in enumerate(parts):
        path = folder / _file(number, part)
        rows = part.held()
        path.write_bytes(_CONTENT[part.form](rows, part))
        tables = {
            "page_url_column": "page" if any(row.page_url is not None for row in rows) else "",
            "image_column": "image" if part.form == "images.parquet" else "",
        }
        decodes = {"decode_entities": True} if part.kind != "warc" and any(row.decode_entities for row in rows) else {}
        inputs.append(
            {
                "name": part.source,
                "kind": part.kind,
                "paths": [path.name],
                **decodes,
                **({} if part.kind == "warc" else {"keep_columns": [KEPT]}),
                **(tables if part.kind == "table" else {}),
            }
        )
    return inputs


def _parquet(rows: list[Candidate], part: Part) -> bytes:
    columns = {
        "caption": pa.array([row.caption_raw for row in rows], pa.string() if len(rows) % 2 else pa.large_string()),
        "url": pa.array([row.image_url for row in rows], pa.string()).dictionary_encode(),
        "page": pa.array([row.page_url for row in rows], pa.string()),
        KEPT: pa.array(range(len(rows)), pa.int64()),
    }
    if part.form == "images.parquet":
        columns["image"] = pa.array(
            [None if row.image_sha256 is None else picture_of(row.image_sha256).bytes for row in rows], pa.binary()
        )
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, row_group_size=64)
    return file.getvalue()


def _csv(rows: list[Candidate], _: Part) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["page", "url", "caption", KEPT])
    for number, row in enumerate(rows):
        fields = [row.page_url or "", row.image_url, row.caption_raw, number]
        writer.writerow(["one", "field", "too", "many", "!"] if row.broken else fields)
    return file.getvalue().encode()


def _tsv(rows: list[Candidate], _: Part) -> bytes:
    lines = [
        "one field"
        if row.broken
        else "\t".join([row.page_url or "", row.image_url or "", row.caption_raw or "", str(number)])
        for number, row in enumerate(rows)
    ]
    return "".join(line + "\n" for line in [f"page\turl\tcaption\t{KEPT}", *lines]).encode()


def _jsonl(rows: list[Candidate], _: Part) -> bytes:
    every = dict.fromkeys(("page", "url", "caption", KEPT))  # the keys have to be somewhere
    objects = [
        {"url": row.image_url, "caption": row.caption_raw, "page": row.page_url, KEPT: number}
        for number, row in enumerate(rows)
    ]
    lines = [
        '{"url": ' if row.broken else json.dumps({**every, **each}, ensure_ascii=n % 2 == 0)
        for n, (row, each) in enumerate(zip(rows, objects, strict=True))
    ]
    return "".join(line + "\n" for line in lines).encode()


def _tar(rows: list[Candidate], _: Part) -> bytes:
    members: list[tuple[str, bytes]] = []
    for number, row in enumerate(rows):
        in_json = {} if number % 2 else {"caption": row.caption_raw}
        members.append((f"{number:06d}.json", json.dumps({"url": row.image_url, KEPT: number, **in_json}).encode()))
        if number % 2 and row.caption_raw is not None:
            members.append((f"{number:06d}.txt", row.caption_raw.encode()))
        if row.image_sha256 is not None:
            members.append((f"{number:06d}.jpg", picture_of(row.image_sha256).bytes))  # the ending says nothing
    return tar(members)


def _warc(rows: list[Candidate], part: Part) -> bytes:
    records = []
    for (page_url, is_broken), elements in groupby(rows, key=lambda row: (row.page_url, row.broken)):
        if is_broken:
            records += [response(None, b"a record without a URL") for _ in elements]
        else:
            records.append(response(page_url, "\n".join(map(_element, elements)).encode(), "text/html; charset=utf-8"))
    records += [response(url, pictures()[name].bytes, "image/anything") for url, name in part.archived]
    return b"".join(map(gzip.compress, records))


def _element(row: Candidate) -> str:
    def attribute(name: str, value: str | None, *, is_text: bool = True) -> str:
        if value is None:
            return ""
        return f' {name}="{html.escape(value) if is_text else value.replace(chr(34), "&quot;")}"'.replace("\r", "&#13;")

    return (
        f"<p><img{attribute('src', row.image_url)}{attribute('alt', row.caption_raw, is_text=not row.decode_entities)}>"
    )


_CONTENT: Mapping[str, Callable[[list[Candidate], Part], bytes]] = {
    "parquet": _parquet,
    "images.parquet": _parquet,
    "csv": _csv,
    "csv.gz": lambda rows, part: gzip.compress(_csv(rows, part)),
    "tsv": _tsv,
    "jsonl": _jsonl,
    "jsonl.zst": lambda rows, part: pa.compress(_jsonl(rows, part), "zstd", asbytes=True),
    "tar": _tar,
    "warc.gz": _warc,
}


# The two books that ship with the repository --------------------------------------------------------------------------

HANDBOOKS = [{"name": "handbook", "paths": [str(Path(__file__).parents[2] / "examples" / "handbook" / "*.warc.gz")]}]


class _Images(HTMLParser):
    """src and alt of every <img>, by the standard library's parser."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.found.append(dict(attrs))


def records(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """URL, content type and body of every record of an archive that has nothing but whole responses."""
    with gzip.open(path) as file:
        while line := file.readline():
            head = dict(header.decode().strip().split(": ", 1) for header in iter(file.readline, b"\r\n"))
            http, _, body = file.read(int(head["Content-Length"])).partition(b"\r\n\r\n")
            if not (line.startswith(b"WARC/1.") and http.startswith(b"HTTP/1.1 200 ") and file.read(4) == b"\r\n\r\n"):
                raise AssertionError(f"{path}: not as plain as this reader takes it")
            yield head["WARC-Target-URI"], re.findall(r"(?i)content-type: *([\w/+.-]+)", http.decode())[0], body


@cache
def handbooks() -> tuple[list[Candidate], dict[str, Picture]]:
    """Candidates of both books, their URLs joined as text (all are plain relative ones), and their images as Pillow
    sees them.
    """
    candidates, images = [], {}
    for path in sorted((Path(__file__).parents[2] / "examples" / "handbook").glob("*.warc.gz")):
        for url, content_type, body in records(path):
            if content_type == "text/html":
                parser = _Images()
                parser.feed(body.decode())
                for image in parser.found:
                    src = image["src"] or ""
                    if ".." in src or not re.fullmatch(r"(?!/)[\w/.-]+", src, re.ASCII):
                        raise AssertionError(f"{src}: not as plain as this reader takes it")
                    candidates.append(
                        Candidate(
                            f"{url.rpartition('/')[0]}/{src}",
                            image.get("alt"),
                            url,
                            "handbook",
                            len(candidates),
                            kind="warc",
                        )
                    )
            images.setdefault(url, Picture(content_type, body, _facts(body)))
    return candidates, images


def _facts(data: bytes) -> ImageFacts:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            return ImageFacts(image.format, *image.size)
    except OSError:
        return ImageFacts(format=None)

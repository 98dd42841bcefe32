"""One damaged record costs itself, with its reason, and its neighbours stay: valid files of each format, damaged."""

import gzip
import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from altalign.errors import UnreadableError
from altalign.filters import pixels
from altalign.settings.curate import InputSettings
from tests.hostile.files import link, metadata, padded, picture
from tests.hostile.image_cases import KINDS, noise
from tests.support import archives
from tests.support.tars import tar

RECORDS = 5
bounded = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Format(NamedTuple):
    """A format of records: its file's kind and suffix, its head and end, and a record of a number."""

    kind: str
    suffix: str
    record: Callable[[int], bytes]  # of which the caption is `the picture of number N`
    head: bytes = b""
    behind: bytes = b""  # each record; it is not damaged
    pack: Callable[[bytes], bytes] = lambda data: data  # of each record
    wrap: Callable[[bytes], bytes] = lambda data: data  # of the whole file


def _caption(number: int) -> str:
    return f"the picture of number {number}"


def _page(number: int) -> bytes:
    page = f'<p><img src="{number}.png" alt="{_caption(number)}">'.encode()
    return archives.response(f"http://a.example/{number}", page * 9)


def _metadata(number: int) -> bytes:
    return metadata(f"http://a.example/{number}", [link("it", _caption(number))])


def _json(number: int) -> bytes:
    return b'{"url": "http://a.example/%d.png", "caption": "%s"}' % (number, _caption(number).encode())


def _line(number: int, delimiter: str) -> bytes:
    return f"http://a.example/{number}.png{delimiter}{_caption(number)}".encode()


FORMATS = {
    "csv": Format("table", ".csv", lambda number: _line(number, ","), b"url,caption\n", b"\n"),
    "csv.gz": Format(
        "table", ".csv.gz", lambda number: _line(number, ","), b"url,caption\n", b"\n", wrap=gzip.compress
    ),
    "tsv": Format("table", ".tsv", lambda number: _line(number, "\t"), b"url\tcaption\n", b"\n"),
    "jsonl": Format("table", ".jsonl", _json, behind=b"\n"),
    "jsonl.zst": Format("table", ".jsonl.zst", _json, behind=b"\n", wrap=archives.zstd),
    "warc.gz": Format("warc", ".warc.gz", _page, pack=gzip.compress),
    "wat": Format("wat", ".wat.gz", _metadata, pack=gzip.compress),
}


@st.composite
def damages(draw: st.DrawFn, *, lines: bool = False) -> Callable[[bytes], bytes]:
    """A change of some bytes: overwritten, cut out or put in; of lines, without the bytes that end one."""
    values = st.integers(0, 255).filter(lambda byte: not lines or byte not in b"\r\n")
    place, length = draw(st.floats(0, 1)), draw(st.integers(1, 12))
    put_in = bytes(draw(st.lists(values, max_size=12)))

    def damaged(data: bytes) -> bytes:
        begin = int(place * (len(data) - 1))
        return data[:begin] + put_in + data[begin + length :]

    return damaged


def captions_and_broken(path: Path, kind: Any) -> tuple[set[str], int]:
    """The captions of a file, and how many records of it are broken."""
    rows, broken, _ = archives.read_all(path, InputSettings(kind=kind, paths=["-"]))
    return {row["caption"] for row in rows}, len(broken)


@pytest.mark.hostile
@pytest.mark.parametrize("name", FORMATS)
@bounded
@given(data=st.data())
def test_a_damaged_record_costs_itself_and_its_neighbours_stay(tmp_path: Path, name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    records = [form.pack(form.record(number)) for number in range(RECORDS)]
    which = data.draw(st.integers(1, RECORDS - 2))
    sound = records[which]
    records[which] = data.draw(damages(lines=form.kind == "table"))(sound)
    path = tmp_path / f"damaged{form.suffix}"
    path.write_bytes(form.wrap(form.head + b"".join(record + form.behind for record in records)))
    captions, broken = captions_and_broken(path, form.kind)
    assert {_caption(number) for number in range(RECORDS) if number != which} <= captions
    assert _caption(which) in captions or broken or len(captions) == RECORDS or not records[which].strip()


def _tar() -> tuple[bytes, int, int]:
    """A tar of samples, and where the bytes of the text of the middle one are."""
    texts = [(f"{number}.txt", _caption(number).encode()) for number in range(RECORDS)]
    images = [(f"{number}.png", picture(number)) for number in range(RECORDS)]
    data = tar(member for sample in zip(images, texts, strict=True) for member in sample)
    begin = data.index(_caption(2).encode())
    return data, begin, begin + len(_caption(2))


@pytest.mark.hostile
@bounded
@given(damage=damages(), place=st.floats(0, 1))
def test_damage_in_a_tar_costs_a_sample_or_makes_it_unreadable(
    tmp_path: Path, damage: Callable[[bytes], bytes], place: float
) -> None:
    data, begin, end = _tar()
    path = tmp_path / "damaged.tar"
    content = damage(data[begin:end])[: end - begin]
    path.write_bytes(data[:begin] + padded(content) + data[begin + 512 :])
    captions, broken = captions_and_broken(path, "webdataset")
    assert {_caption(number) for number in range(RECORDS) if number != 2} <= captions
    assert broken or len(captions) == RECORDS
    at = int(place * len(data))
    path.write_bytes(data[:at] + damage(data[at : at + 40]) + data[at + 40 :])
    with suppress(UnreadableError):
        captions, broken = captions_and_broken(path, "webdataset")
        assert captions or broken


def _table() -> pa.Table:
    urls = [f"http://a.example/{number}.png" for number in range(500)]
    return pa.table({"url": urls, "caption": [_caption(number) for number in range(500)]})


def _parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(_table(), file, use_dictionary=False, compression="zstd")
    return file.getvalue()


def _arrow() -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, _table().schema) as stream:
        stream.write_table(_table())
    return file.getvalue()


@pytest.mark.hostile
@pytest.mark.parametrize(("suffix", "build"), [(".parquet", _parquet), (".arrow", _arrow)])
@bounded
@given(cut=st.floats(0.01, 0.999))
def test_a_binary_table_that_is_cut_cannot_be_read(
    tmp_path: Path, suffix: str, build: Callable[[], bytes], cut: float
) -> None:
    path = tmp_path / f"cut{suffix}"
    data = build()
    path.write_bytes(data[: int(cut * len(data))])
    with pytest.raises(UnreadableError, match=str(path)):
        captions_and_broken(path, "table")


@pytest.mark.hostile
@pytest.mark.parametrize("kind", KINDS)
@bounded
@given(cut=st.floats(0, 1))
def test_an_image_that_is_cut_has_damage_or_all_its_pixels(kind: str, cut: float) -> None:
    data = noise(kind)
    found = pixels.decode(data[: int(cut * len(data))], pixels_at_most=1_000_000, colour=False)
    assert found.pixels is None or (found.width, found.height) == (260, 240)

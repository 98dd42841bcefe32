"""Defects that damaged input once showed, each as the smallest input that shows it."""

import csv
import io
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.errors import UnreadableError, UsageError
from altalign.filters import pixels
from altalign.pipelines import read
from altalign.pipelines.read.pages import records
from altalign.pipelines.read.tables import lines, table
from altalign.settings.curate import InputSettings
from altalign.storage import parquet
from tests.support import archives

TABLE = InputSettings(kind="table", paths=["-"])


def written(**options) -> bytes:
    """A Parquet file of 7 rows."""
    file = io.BytesIO()
    pq.write_table(
        pa.table({"url": ["http://a/"] * 7, "caption": ["c"] * 7, "xyz": ["x"] * 7}),
        file,
        compression="none",
        store_schema=False,
        **options,
    )
    return file.getvalue()


def read_all(path: Path, settings: InputSettings = TABLE) -> tuple[list[dict], list[dict], list[dict]]:
    return archives.read_all(path, settings)


# Parquet --------------------------------------------------------------------------------------------------------------


def test_a_column_whose_name_is_no_utf8_makes_a_table_unreadable(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(written().replace(b"xyz", b"\xffyz"))
    for read_it in (lambda: read_all(path), lambda: parquet.row_groups(str(path))):
        with pytest.raises(UnreadableError, match=r"a\.parquet: cannot be read as Parquet"):
            read_it()


def test_a_footer_whose_row_groups_do_not_add_up_makes_a_table_unreadable(tmp_path):
    path, data = tmp_path / "a.parquet", written()
    at = data.rindex(b"\x16\x0e\x26")  # field 3 of a row group, 7 rows, and field 5
    path.write_bytes(data[:at] + b"\x16\x00\x26" + data[at + 3 :])
    with pytest.raises(UnreadableError, match="0 rows in its row groups, where its footer says 7"):
        read_all(path)
    with pytest.raises(UnreadableError, match="0 rows in its row groups"):
        parquet.row_groups(str(path))


def test_fewer_rows_than_the_footer_says_are_no_whole_table(tmp_path):
    path = tmp_path / "a.parquet"
    # both numbers of rows, not those of values
    data, replaced = re.subn(rb"\x16\x0e(?=\x19\x1c|\x26\x08)", b"\x16\x10", written())
    assert replaced == 2
    path.write_bytes(data)
    assert parquet.row_groups(str(path)) == [8]
    with pytest.raises(UnreadableError, match="1 rows fewer than its footer says"):
        list(parquet.read_row_groups(str(path), 0, 0, ["url"]))
    with pytest.raises(UnreadableError, match="1 rows fewer than its footer says"):
        read_all(path)


def test_numbers_that_a_damaged_dictionary_does_not_have_make_a_table_unreadable(tmp_path):
    path, file = tmp_path / "a.parquet", io.BytesIO()
    pq.write_table(
        pa.table({"url": ["http://a/"] * 3, "caption": pa.array(["one", "two", "three"]).dictionary_encode()}),
        file,
        compression="none",
    )
    # values of no bytes, which become one
    path.write_bytes(file.getvalue().replace(b"\3\0\0\0two\5\0\0\0three", bytes(16)))
    with pytest.raises(UnreadableError, match=r"a\.parquet: cannot be read as Parquet"):
        read_all(path)
    with pytest.raises(UnreadableError, match=r"a\.parquet: cannot be read as Parquet"):
        [table.candidates(batch, TABLE, None) for batch in parquet.read_row_groups(str(path), 0, 0, ["url", "caption"])]


def test_a_page_that_claims_more_than_its_file_can_hold_is_refused_before_memory_is_taken_for_it(tmp_path):
    path = tmp_path / "a.parquet"
    data = written(use_dictionary=False, write_statistics=False)
    assert data[4:6] == b"\x15\x00"  # field 1 of the first page's header: a data page
    at = 4 + data[4:40].index(b"\x15", 4)  # field 3, behind fields 1 and 2
    path.write_bytes(data[:at] + b"\x15\x80\x89\x7a" + data[at + 6 :])
    for read_it in (lambda: read_all(path), lambda: table.direct(str(path), TABLE).row_groups):
        with pytest.raises(
            UnreadableError, match="a page of 1000000 bytes in column 0 of row group 0, which has at most"
        ):
            read_it()


# Tables of text -------------------------------------------------------------------------------------------------------


def rows_of(text: bytes, form: lines.Form = "csv") -> list[lines.Row | lines.Bad]:
    return list(lines.rows(io.BytesIO(text), form, ["url", "caption"], many="caption", keep=()))


def test_quotes_that_never_close_have_no_file_read_once_a_line(monkeypatch):
    monkeypatch.setattr(lines, "LINE_BYTES", 2_000)
    read_lines = []
    original = csv.reader
    counted = lambda each, **options: original((read_lines.append(1) or line for line in each), **options)  # noqa: E731
    monkeypatch.setattr(csv, "reader", counted)
    needed = []
    for number in (2_000, 4_000):
        read_lines.clear()
        # each line opens a quote, and leaves open what the line before opened
        rows = rows_of(b"url,caption\n" + b'a","""x\n' * number)
        assert len(rows) == number
        assert all(isinstance(row, lines.Bad) for row in rows)
        needed.append(len(read_lines))
    assert needed[1] < 3 * needed[0]
    assert "too many above never were" in rows[-1].error


def test_a_row_of_a_thousand_lines_is_kept_and_one_more_is_too_many():
    rows = rows_of(b'url,caption\na,"' + b"\n" * 999 + b'"\nb,"' + b"\n" * 1_000 + b'"\nc,three\n')
    assert [row.values[0] for row in rows if isinstance(row, lines.Row)] == ["a", "c"]
    errors = [row.error for row in rows if isinstance(row, lines.Bad)]
    assert errors == ["of more than 1,000 lines; is a quote not closed?", "unexpected end of data"]


def test_of_the_keys_of_json_objects_so_many_are_held_as_a_message_needs(tmp_path):
    text = b"".join(
        b"{" + b", ".join(b'"%d.%d": 1' % (number, key) for key in range(100)) + b', "caption": ""}\n'
        for number in range(100)
    )
    (tmp_path / "a.jsonl").write_bytes(text)
    names, what = lines.names_of(str(tmp_path / "a.jsonl"), ["url", "caption"])
    assert what == "key in the first 100 objects"
    assert "caption" in names
    assert "url" not in names
    assert len(names) <= 1_001


def test_names_of_columns_in_a_message_cannot_act_on_a_terminal(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('url,"cap\x1b[31m\ntion","\u202ecaptio"\n'.encode())
    with pytest.raises(UsageError) as error:
        read.check([str(path)], TABLE)
    assert str(error.value).isprintable()
    assert 'no column "caption"' in str(error.value)


# Archives -------------------------------------------------------------------------------------------------------------


def long_records(count: int) -> list[bytes]:
    """Records whose zstd frames are longer than the reader's first look at them."""
    noise = np.random.default_rng(7)
    return [
        archives.response(f"http://a/{number}", noise.bytes(5_000 + 150_000 * (number == 3)), "image/png")
        for number in range(count)
    ]


def urls_of(path: Path) -> list[str | None]:
    return [
        record.url if isinstance(record, records.Record) else None
        for record in records.records(str(path), lambda *_: 0)
    ]


def test_a_zstd_archive_of_large_records_is_read_and_each_can_be_read_again(tmp_path):
    path = archives.write(tmp_path / "a.warc.zst", long_records(6), "zstd")
    every = list(records.records(str(path), lambda *_: 0))
    assert [record.url for record in every if isinstance(record, records.Record) and record.can_be_read_again] == [
        f"http://a/{number}" for number in range(6)
    ]


@pytest.mark.parametrize("damaged", [1, 3, 4])
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("at", [0, 4])
def test_a_broken_zstd_frame_costs_all_behind_it_and_says_so(tmp_path, damaged, small, at):
    frames = [archives.zstd(each) for each in (map(archives.page, range(6)) if small else long_records(6))]
    frames[damaged] = frames[damaged][:at] + bytes(20) + frames[damaged][at + 20 :]
    path = tmp_path / "a.warc.zst"
    path.write_bytes(b"".join(frames))
    *_, last = records.records(str(path), lambda *_: 0)
    assert urls_of(path) == [*(f"http://a/{number}" for number in range(damaged)), None]
    assert isinstance(last, records.BrokenRecord)
    assert "what is behind it is not read" in last.error


def test_a_name_in_a_tar_that_is_no_utf8_can_be_told(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for data in (b"one", b"two"):
            member = tarfile.TarInfo("a\udcae.txt")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    rows, broken, _ = read_all(path, InputSettings(kind="webdataset", paths=["-"]))
    assert rows == []
    assert [entry["error"] for entry in broken] == [
        "a\\udcae.txt: a second .txt of one sample; two samples may not have one name"
    ]


def header(kind: bytes, data: bytes) -> bytes:
    """An extended header of a tar."""
    member = tarfile.TarInfo("header")
    member.type, member.size = kind, len(data)
    return member.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)


@pytest.mark.parametrize(
    "headers",
    [
        header(b"x", b"99999999999999999999999 path=a\n"),
        header(b"x", b"8 a=bcd\n") * 2_000,
        header(b"L", b"name\0") * 2_000,
    ],
    ids=["a length of 23 digits", "a chain of extended headers", "a chain of long names"],
)
def test_headers_of_a_tar_that_python_cannot_follow_make_it_unreadable(tmp_path, headers):
    path = tmp_path / "a.tar"
    member = tarfile.TarInfo("a.txt")
    path.write_bytes(headers + member.tobuf() + bytes(1_024))
    with pytest.raises(UnreadableError, match=r"a\.tar: cannot be read as tar \(broken extended header"):
        read_all(path, InputSettings(kind="webdataset", paths=["-"]))


@pytest.mark.parametrize("cut", [[2], [2, 3], [0], [5]])
def test_a_record_cut_in_the_first_lines_of_its_head_costs_no_other_gzip_member(tmp_path, cut):
    every = [archives.page(number)[: 14 if number in cut else None] for number in range(6)]
    urls = urls_of(archives.write(tmp_path / "a.warc", every))
    assert [url for url in urls if url] == [f"http://a/{number}" for number in range(6) if number not in cut]


# Images ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["group3", "group4"])
def test_a_tiff_of_a_fax_is_damaged_for_its_decoder_tells_no_damage(compression):
    file = io.BytesIO()
    Image.effect_noise((40, 33), 99).convert("1").save(file, "TIFF", compression=compression)
    data = bytearray(file.getvalue())
    strip = Image.open(file).tag_v2[273][0]  # type: ignore[attr-defined]
    data[strip + 20 : strip + 50] = b"\xa5" * 30  # libtiff leaves what it cannot decode as the memory was
    for each in (file.getvalue(), bytes(data)):
        found = pixels.decode(each, pixels_at_most=10_000, colour=False)
        assert (found.format, found.width, found.height, found.pixels) == ("tiff", 40, 33, None)
        assert found.damage == f"compression {compression}, in which damage goes unnoticed"
        with pytest.raises(ValueError, match="goes unnoticed"):
            pixels.to_stored(each, portable=True, resize_short_side_px=0)

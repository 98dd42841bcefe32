"""Tables: every format, and every odd row, line, column and file."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data.schema import CANDIDATE
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import read
from altalign.pipelines.read.stretches import STRETCH_ROWS
from altalign.pipelines.read.tables import table
from altalign.settings.curate import InputSettings
from tests.support.archives import compress
from tests.support.archives import read_all as read_all_of


def an_input(**values) -> InputSettings:
    return InputSettings(kind="table", paths=["-"], **values)


def read_all(path: Path, **values) -> tuple[list[dict], list[dict], list[dict]]:
    rows, broken, places = read_all_of(path, an_input(**values))
    assert all(row["reason"] is None for row in rows)
    return rows, broken, places


def captions(path: Path, **values) -> list[str]:
    return [row["caption"] for row in read_all(path, **values)[0]]


TEXTS = {
    ".csv": b'url,caption,other\nhttp://a/1#x,"one, ""two"" \n three",1\r\n  ,four,2\n',
    ".tsv": b'url\tcaption\tother\r\nhttp://a/1#x\tone, "two" three\t1\n  \tfour\t2',
    ".jsonl": b'{"url": "http://a/1#x", "caption": "one, \\"two\\" three"}\n\n  \n{"caption": "four", "url": "  "}\n',
}


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("form", TEXTS)
def test_a_table_of_text_is_read_in_any_format_and_compression(tmp_path, form, compression):
    path = compress(tmp_path / f"table{form}{compression}", TEXTS[form])
    rows, broken, places = read_all(path)
    assert (broken, places) == ([], [])
    assert rows == [
        {
            "image_url": "http://a/1",
            "image_identity": "http://a/1",
            "caption": 'one, "two" three',
            "page_url": None,
            "source_key": f"{path.name}#0",
            "extra": None,
            "page_said": None,
            "reason": None,
            "failed": [],
        },
        {
            "image_url": "",
            "image_identity": None,
            "caption": "four",
            "page_url": None,
            "source_key": f"{path.name}#1",
            "extra": None,
            "page_said": None,
            "reason": None,
            "failed": [],
        },
    ]


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("text", [b"", b"url,caption\n", b"\xef\xbb\xbfurl,caption", b"\n\n", b"\xef\xbb\xbf"])
def test_a_table_without_rows_is_no_error(tmp_path, text, compression):
    path = compress(tmp_path / f"table.csv{compression}", text)
    read.check([str(path)], an_input())
    assert read_all(path) == ([], [], [])


def test_files_of_no_bytes_are_no_error(tmp_path):
    for name in ("a.parquet", "a.csv.gz", "a.tsv.zst", "a.jsonl"):
        (tmp_path / name).touch()
        read.check([str(tmp_path / name)], an_input())
        assert not read.is_direct(str(tmp_path / name), an_input())
        assert read_all(tmp_path / name) == ([], [], [])


@pytest.mark.parametrize(
    ("name", "text", "kept", "offsets"),
    [
        ("too few and too many fields", b"url,caption\na\nb,two\nc,d,e\n", ["two"], [12, 20]),
        ("a quote that is never closed", b'url,caption\na,"one\nb,two\nc,three\n', ["two", "three"], [12]),
        ("a quote that the next one closes", b'url,caption\na,"one\nb,"two"\nc,three\n', ["two", "three"], [12]),
        ("text after a closing quote", b'url,caption\na,"one"x\nb,two\n', ["two"], [12]),
        ("blank lines", b"url,caption\n\na,one\n  \n\r\nb,two\n\n", ["one", "two"], []),
        ("no UTF-8", b"url,caption\na,\xff one\nb,two\n", ["two"], [12]),
        ("a byte order mark, a NUL", b"\xef\xbb\xbfurl,caption\na,o\0ne\n", ["one"], []),
        ("quoted blank line in a field", b'url,caption\na,"one\n\ntwo"\n', ["one two"], []),
        ("repeated unwanted columns", b"x,url,x,caption\n1,a,2,one\n", ["one"], []),
    ],
)
def test_an_odd_csv_row_costs_at_most_itself(tmp_path, name, text, kept, offsets):
    path = compress(tmp_path / "table.csv", text)
    _, broken, _ = read_all(path)
    assert captions(path) == kept, name
    assert [entry["offset"] for entry in broken] == offsets, name
    assert all(entry["error"] for entry in broken)


def test_tsv_has_no_quoting_and_lone_carriage_returns_stay(tmp_path):
    path = compress(tmp_path / "table.tsv", b'caption\turl\n"one\ta\nfour five\n\t\nsix\rseven\tc\n')
    rows, broken, _ = read_all(path)
    assert [row["caption"] for row in rows] == ['"one', "", "six seven"]
    assert [(entry["offset"], entry["error"]) for entry in broken] == [(19, "1 fields, where the header has 2")]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"[1, 2]", "list, where an object is meant"),
        (b"{", "no JSON"),
        (b'{"url": 1, "caption": "x"}', "url is no string but int"),
        (b'{"url": "x", "caption": ["x", 1]}', "caption is no string but int"),
        (b'{"url": ["x"], "caption": "x"}', "url is no string but list"),
        (b'{"a":' * 100_000, "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"url": "x", "caption": ' + b"9" * 10_000 + b"}", "no"),
    ],
)
def test_a_broken_json_line_costs_that_line(tmp_path, line, error):
    path = compress(
        tmp_path / "table.jsonl", b'{"url": "a", "caption": "one"}\n' + line + b'\n{"url": "b", "caption": "two"}'
    )
    _, broken, _ = read_all(path)
    assert captions(path) == ["one", "two"]
    assert [entry["offset"] for entry in broken] == [31]
    assert broken[0]["error"].startswith(error)


@pytest.mark.parametrize(
    ("value", "caption"),
    [(b'"a \\ud83d"', "a \ufffd"), (b'"a \\ud83d\\ude00"', "a 😀"), (b"null", ""), (b'"\\u0000a"', "a")],
)
def test_odd_strings_of_json_become_captions(tmp_path, value, caption):
    path = compress(tmp_path / "table.jsonl", b'{"url": "a", "caption": ' + value + b', "n": NaN}\n')
    assert captions(path) == [caption]


def test_a_missing_key_is_null(tmp_path):
    path = compress(tmp_path / "table.jsonl", b'{"url": "a"}\n{"caption": "x", "url": "http://b/"}\n{"caption": "y"}\n')
    rows, broken, _ = read_all(path)
    assert not broken
    assert [(row["image_url"], row["caption"]) for row in rows] == [("a", ""), ("http://b/", "x"), (None, "y")]


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_an_endless_line_is_one_broken_row(tmp_path, monkeypatch, form):
    monkeypatch.setattr("altalign.pipelines.read.tables.lines.LINE_BYTES", 1_000)
    row = {
        "csv": "{url},{caption}\n",
        "tsv": "{url}\t{caption}\n",
        "jsonl": '{{"url": "{url}", "caption": "{caption}"}}\n',
    }[form]
    text = "".join(
        row.format(url=url, caption=caption)
        for url, caption in [("url", "caption")] * (form != "jsonl") + [("a", "one"), ("b", "x" * 5_000), ("c", "two")]
    )
    path = compress(tmp_path / f"table.{form}", text.encode())
    _, broken, _ = read_all(path)
    assert captions(path) == ["one", "two"]
    assert len(broken) == 1
    assert "longer than" in broken[0]["error"]


def test_an_open_quote_of_endless_lines_costs_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr("altalign.pipelines.read.tables.lines.LINE_BYTES", 1_000)
    path = compress(tmp_path / "table.csv", b'url,caption\na,"one\n' + b"b,two\n" * 1_000)
    assert len(captions(path)) == 1_000
    assert [entry["offset"] for entry in read_all(path)[1]] == [12]


@pytest.mark.parametrize("form", [".csv.gz", ".tsv.zst", ".jsonl.gz"])
def test_a_compressed_file_cut_in_two_cannot_be_read(tmp_path, form):
    lines = [
        f'{{"url":"http://a/{i}", "caption": "{hashlib.sha256(bytes([i % 256])).hexdigest()}"}}\n' for i in range(2_000)
    ]
    path = compress(
        tmp_path / f"table{form}",
        "".join(["url\tcaption\n"] * (form != ".jsonl.gz") + lines)
        .replace("url\t", "url," if "csv" in form else "url\t")
        .encode(),
    )
    path.write_bytes(path.read_bytes()[:-30])
    read.check([str(path)], an_input())
    with pytest.raises(UnreadableError, match=path.name):
        read_all(path)


def test_a_file_of_something_else_cannot_be_read(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"<html>Not found</html>")
    read.check([str(path)], an_input())
    with pytest.raises(UnreadableError, match=r"a\.parquet.*skip_unreadable"):
        read_all(path)


@pytest.mark.parametrize("written", [".csv", ".csv.gz", ".csv.zst"])
@pytest.mark.parametrize("named", ["a.csv", "b.csv.gz", "c.csv.zst"])
def test_first_bytes_say_how_a_table_of_text_is_compressed(tmp_path, written, named):
    compress(tmp_path / f"x{written}", b"url,caption\na,one\n").rename(tmp_path / named)
    assert captions(tmp_path / named) == ["one"]


def test_a_header_that_cannot_be_read_stops_the_file(tmp_path):
    path = compress(tmp_path / "table.csv", b'"url"x,caption\na,one\n')
    with pytest.raises(UnreadableError, match="header"):
        read_all(path)


# Parquet --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
    ids=str,
)
def test_any_type_of_string_is_read_from_parquet(tmp_path, kind):
    columns = {
        "caption": pa.array([" a  b ", None, "&lt;"], kind),
        "url": pa.array([" http://a/#f", "no url", None], kind),
        "page": pa.array([None, "", "p"], kind),
    }
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table(columns), path)
    wanted = an_input(page_url_column="page", decode_entities=True)
    read.check([str(path)], wanted)
    assert read.is_direct(str(path), wanted)
    rows = [
        {"image_url": "http://a/", "image_identity": "http://a/", "caption": "a b", "page_url": None},
        {"image_url": "no url", "image_identity": None, "caption": "", "page_url": ""},
        {"image_url": None, "image_identity": None, "caption": "<", "page_url": "p"},
    ]
    rows = [
        {**row, "source_key": f"table.parquet#{number}", "extra": None, "page_said": None}
        for number, row in enumerate(rows)
    ]
    (found,) = pq.read_table(path, columns=table.columns(wanted)).combine_chunks().to_batches()
    batch = table.candidates(found, wanted, table.row_names(path.name, pa.array(range(3))))
    assert batch.schema == CANDIDATE
    assert batch.to_pylist() == rows
    assert table.candidates(found, wanted, None).to_pylist() == [{**row, "source_key": None} for row in rows]
    assert read_all(path, page_url_column="page", decode_entities=True)[0] == [
        {**row, "reason": None, "failed": []} for row in rows
    ]


def test_references_stay_without_decode_entities(tmp_path):
    path = compress(tmp_path / "table.csv", b"url,caption\na,Tom &amp; Jerry\n")
    assert captions(path) == ["Tom &amp; Jerry"]
    assert captions(path, decode_entities=True) == ["Tom & Jerry"]


def test_bytes_of_parquet_that_are_no_utf8_become_replacement_characters():
    raw = pa.array([b"ok", b"a\xff", None, b"b"])
    broken = pa.Array.from_buffers(pa.string(), 4, raw.buffers(), raw.null_count)
    batch = pa.record_batch(dict.fromkeys(("url", "caption", "page"), broken.slice(1)))
    found = table.candidates(batch, an_input(page_url_column="page"), None)
    assert found["caption"].to_pylist() == ["a\ufffd", "", "b"]
    assert found["image_url"].to_pylist() == found["page_url"].to_pylist() == ["a\ufffd", None, "b"]


def test_a_column_of_nulls_alone_is_a_column_of_strings(tmp_path):
    pq.write_table(pa.table({"url": pa.nulls(2), "caption": pa.array(["a", "b"])}), tmp_path / "table.parquet")
    assert [row["image_url"] for row in read_all(tmp_path / "table.parquet")[0]] == [None, None]


@pytest.mark.parametrize("kind", ["binary", "large_binary", "struct"])
def test_images_in_hand_have_an_identity_and_a_place(tmp_path, kind):
    data = [b"one", b"two", None, b"", b"three", b"one"]
    image = pa.array(data, pa.large_binary() if kind == "large_binary" else pa.binary())
    if kind == "struct":
        mask = pa.array([False, False, True, False, False, False])
        image = pa.StructArray.from_arrays([image, pa.array(["p"] * 6)], names=["bytes", "path"], mask=mask)
    url = ["http://a/1#f", "", "http://a/2", None, "ftp://a", "bad"]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"url": url, "caption": list("abcdef"), "img": image}), path, row_group_size=4)
    read.check([str(path)], an_input(image_column="img"))
    assert not read.is_direct(str(path), an_input(image_column="img"))
    rows, _, places = read_all(path, image_column="img")
    two, none, three, one = (hashlib.sha256(each).hexdigest() for each in (b"two", b"", b"three", b"one"))
    assert [row["image_identity"] for row in rows] == ["http://a/1", two, "http://a/2", none, three, one]
    assert places == [
        {"image_identity": rows[row]["image_identity"], "offset": row, "length": None, "bytes": None}
        for row in (0, 1, 3, 4, 5)
    ]
    assert list(table.images(str(path), an_input(image_column="img"), [0, 1, 3, 4, 5])) == [
        (0, b"one"),
        (1, b"two"),
        (3, b""),
        (4, b"three"),
        (5, b"one"),
    ]


def test_images_in_hand_need_no_url_column(tmp_path):
    pq.write_table(pa.table({"caption": ["a"], "img": [b"one"]}), tmp_path / "table.parquet")
    rows, _, _ = read_all(tmp_path / "table.parquet", image_column="img", url_column="")
    assert rows[0]["image_identity"] == hashlib.sha256(b"one").hexdigest()


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.string(), 2)])
def test_each_caption_of_a_list_is_a_candidate(tmp_path, kind):
    lists = [["a", "b"], ["c", None], ["a", "a"]]
    lists += [] if pa.types.is_fixed_size_list(kind) else [None, [], ["d"]]  # in Parquet Arrow reads no fixed null
    path = tmp_path / "table.parquet"
    urls = [f"http://a/{number}" for number in range(len(lists))]
    pq.write_table(pa.table({"caption": pa.array(lists, kind), "url": urls}), path, row_group_size=2)
    read.check([str(path)], an_input())
    assert not read.is_direct(str(path), an_input())
    rows, broken, places = read_all(path)
    assert (broken, places) == ([], [])
    expected = [(url, caption or "") for url, each in zip(urls, lists, strict=True) for caption in each or [None]]
    assert [(row["image_url"], row["caption"]) for row in rows] == expected


def test_each_caption_of_a_json_list_is_a_candidate(tmp_path):
    path = compress(
        tmp_path / "table.jsonl.gz",
        b'{"url": "http://a/1", "caption": ["a", null, "b"]}\n{"url": "http://a/2", "caption": []}\n'
        b'{"url": "http://a/3", "caption": "c"}\n',
    )
    rows, broken, _ = read_all(path)
    assert [(row["image_url"][-1], row["caption"]) for row in rows] == [
        *zip("11123", ["a", "", "b", "", "c"], strict=True)
    ]
    assert not broken


def test_an_image_with_a_list_of_captions_has_one_place_and_one_identity(tmp_path):
    path = tmp_path / "table.parquet"
    columns = {"url": [None, "http://a/", None], "text": [["a", "b"], ["c"], []], "img": [b"one", b"two", b"three"]}
    pq.write_table(pa.table(columns), path)
    rows, _, places = read_all(path, caption_column="text", image_column="img")
    one, three = (hashlib.sha256(each).hexdigest() for each in (b"one", b"three"))
    identities = [one, one, "http://a/", three]
    assert [(row["image_identity"], row["caption"]) for row in rows] == [
        *zip(identities, ["a", "b", "c", ""], strict=True)
    ]
    assert [(place["image_identity"], place["offset"]) for place in places] == [(one, 0), ("http://a/", 1), (three, 2)]


def test_long_lists_of_captions_come_in_bounded_stretches(tmp_path):
    path = tmp_path / "table.parquet"
    lists = [[f"{row} {number}" for number in range(row * 7)] for row in range(300)]
    pq.write_table(pa.table({"caption": lists, "url": [f"http://a/{row}" for row in range(300)]}), path)
    stretches = [each.rows for each in read.read(str(path), an_input())]
    assert max(each.num_rows for each in stretches) < STRETCH_ROWS + 300 * 7
    assert pa.Table.from_batches(stretches)["caption"].to_pylist() == ["", *(each for some in lists for each in some)]


def test_a_list_that_would_repeat_a_long_url_too_often_is_a_broken_row(tmp_path):
    captions_of = ",".join(['"a"'] * 1_000)
    line = '{"url": "http://a/' + "b" * 300_000 + '", "caption": [' + captions_of + "]}\n"
    path = compress(tmp_path / "table.jsonl", line.encode() + b'{"url": "http://a/", "caption": "one"}\n')
    _, broken, _ = read_all(path)
    assert captions(path) == ["one"]
    assert broken[0]["error"] == "1,000 captions, which would repeat 300,009 bytes of URLs each"


def test_many_rows_come_in_bounded_stretches_without_loss(tmp_path):
    path = compress(
        tmp_path / "table.csv", b"url,caption\n" + b"".join(b"http://a/%d,c %d\n" % (i, i) for i in range(20_000))
    )
    stretches = [each.rows for each in read.read(str(path), an_input())]
    assert max(each.num_rows for each in stretches) <= STRETCH_ROWS
    assert pa.Table.from_batches(stretches)["caption"].to_pylist() == [f"c {i}" for i in range(20_000)]


# Settings that do not fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet"])
def test_a_missing_column_is_refused_with_those_that_are_there(tmp_path, form):
    path = tmp_path / f"table.{form}"
    match form:
        case "parquet":
            pq.write_table(pa.table({"url": ["a"], "captoin": ["b"]}), path)
        case "jsonl":
            path.write_text(json.dumps({"url": "a", "captoin": "b"}))
        case _:
            path.write_text("url,captoin\na,b\n".replace(",", "," if form == "csv" else "\t"))
    with pytest.raises(UsageError, match=r'table.*"caption".*there are (captoin, url|url, captoin)'):
        read.check([str(path)], an_input())
    with pytest.raises(UsageError):
        read_all(path)


def test_settings_that_do_not_fit_are_refused(tmp_path):
    pq.write_table(pa.table({"url": [1], "caption": ["b"], "image": ["x"]}), tmp_path / "number.parquet")
    pq.write_table(pa.table({"url": ["a"], "caption": ["b"], "image": ["x"]}), tmp_path / "text.parquet")
    (tmp_path / "twice.csv").write_text("url,caption,url\n")
    (tmp_path / "a.csv").write_text("url,caption\n")
    (tmp_path / "a.xls").write_text("url,caption\n")
    (tmp_path / "folder.csv").mkdir()
    for name, values, message in [
        ("number.parquet", {}, "column url is of type int64"),
        ("text.parquet", {"image_column": "image"}, "column image is of type string"),
        ("text.parquet", {"image_column": "imgae"}, 'no column "imgae"'),
        ("text.parquet", {"caption_column": ""}, "caption_column is empty"),
        ("twice.csv", {}, "there 2 times"),
        ("a.csv", {"image_column": "image"}, "only Parquet and Arrow tables hold images"),
        ("a.xls", {}, "should end in .parquet"),
        ("folder.csv", {}, "a folder, where a file is meant"),
        ("absent.csv", {}, "no such file"),
    ]:
        with pytest.raises(UsageError, match=message):
            read.check([str(tmp_path / name)], an_input(**values))


# Properties -----------------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    data=st.binary(max_size=200) | st.text("a,\"\n\r\t{}'", max_size=80).map(str.encode),
    form=st.sampled_from(["csv", "tsv", "jsonl"]),
)
def test_any_bytes_give_rows_or_broken_rows(tmp_path_factory, data, form):
    path = tmp_path_factory.getbasetemp() / f"any.{form}"
    head = {"csv": b"url,caption\n", "tsv": b"url\tcaption\n", "jsonl": b'{"url": "", "caption": ""}\n'}[form]
    path.write_bytes(head + data)
    rows, broken, _ = read_all(path)
    lines = sum(1 for line in data.split(b"\n") if line.strip())
    assert len(rows) + len(broken) - (form == "jsonl") <= max(lines, data.count(b"\n") + 1)
    if form != "csv":
        assert len(rows) + len(broken) - (form == "jsonl") >= sum(
            1 for line in data.split(b"\n") if line.decode(errors="replace").strip()
        )

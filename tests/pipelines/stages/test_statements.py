"""What pages, headers and files of sites say on its way from archives to rows: as text, through copies, by row."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.cli import main
from altalign.data import preferences
from altalign.data.reasons import DropReason
from altalign.filters.reservations import Listener, Said
from altalign.pipelines import read
from altalign.pipelines.images.judging import Outcome
from altalign.pipelines.read.pages import image_elements
from altalign.pipelines.read.pages.html_kernels import META_PLACES
from altalign.pipelines.read.pages.image_elements import META_BYTES
from altalign.pipelines.read.pages.warc import images_of_metadata
from altalign.pipelines.stages import statements
from altalign.settings.curate import InputSettings
from tests.support import marks
from tests.support.archives import record, response, write
from tests.support.pictures import encoded, picture

TRAIN = Listener("train", "altalign")
NOAI, FREE = Said("x-robots-tag", "noai", "page header", None), Said("x-robots-tag", "all", "image header", None)
SAID = st.builds(Said, *[st.text(max_size=5)] * 3, st.none() | st.text(max_size=3))
NAMED = ("robots", "tdm-reservation", "altalign")


# Text and column ------------------------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.lists(SAID, max_size=4), max_size=8))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_statements_come_back_from_text_and_the_column_has_them(rows: list[list[Said] | None]) -> None:
    texts = [None if row is None else preferences.as_text(row) for row in rows]
    distinct = [None if row is None else list(dict.fromkeys(row)) for row in rows]
    assert [None if text is None else preferences.from_text(text) for text in texts] == distinct
    column = preferences.of_texts(pa.array(texts, pa.string()))
    assert column.equals(preferences.column(distinct))
    names = ("notation", "value", "where", "when")
    expected = [None if row is None else [dict(zip(names, one, strict=True)) for one in row] for row in distinct]
    assert column.to_pylist() == expected


def test_of_very_many_statements_the_first_are_kept() -> None:
    many = [Said("x-robots-tag", str(number), "page header", None) for number in range(10_000)]
    assert preferences.from_text(preferences.as_text(many)) == many[: preferences.STATEMENTS_AT_MOST]


# Metas ----------------------------------------------------------------------------------------------------------------


def metas(html: str) -> list[tuple[str, str]]:
    found = list[tuple[str, str]]()
    page = (html + "<img src=a alt=b>").encode()
    assert list(image_elements.images(page, "http://a/", None, metas=found, named=NAMED))
    return found


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ('<meta name="robots" content="noai">', [("robots", "noai")]),
        ("<META CONTENT=noai NAME=RoBoTs>", [("RoBoTs", "noai")]),
        ("<meta name=' robots\n' content='no&#97;i'/>", [(" robots\n", "noai")]),
        ('<meta name="altalign" content="">', [("altalign", "")]),
        ('<meta name="robots"><meta content="noai"><meta name="robotsx" content="noai">', []),
        ('<meta property="robots" content="noai"><meta name="googlebot" content="noai">', []),
        ('<!--<meta name="robots" content="noai">--><script>"<meta name=robots content=noai>"</script>', []),
        ('<template><meta name="robots" content="noai"></template>', []),
        ('<meta name="robots" content="a"><meta name="tdm-reservation" content="1">', [
            ("robots", "a"), ("tdm-reservation", "1")]),
    ],
)  # fmt: skip
def test_metas_are_those_of_the_document(html: str, expected: list[tuple[str, str]]) -> None:
    assert metas(html) == expected


def test_metas_of_a_hostile_page_are_bounded() -> None:
    assert len(metas('<meta name="robots" content="noai">' * 50_000)) == META_PLACES // 4
    assert metas(f'<meta name="robots" content="{"é" * 1_000_000}">') == [("robots", "é" * (META_BYTES // 2))]
    assert metas(f'<meta name="{" " * 100_000}robots" content="noai">') == []


# Archives -------------------------------------------------------------------------------------------------------------


def test_metadata_of_an_archive_has_headers_and_metas_of_its_page() -> None:
    page = {"Links": [{"path": "IMG@/src", "url": "a.png", "alt": "x"}]}
    page["Head"] = {"Metas": [{"name": "robots", "content": "noai"}, {"name": None, "content": "x"}, 3, {"name": "x"}]}
    response = {"HTML-Metadata": page, "Headers": {"X-ROBOTS-tag": ["noimageai", 7], "Content-Usage": 5, "Link": {}}}
    head = {"WARC-Target-URI": "http://a/", "WARC-Date": "2026-02-03T04:05:06Z"}
    metadata = {"WARC-Header-Metadata": head, "Payload-Metadata": {"HTTP-Response-Metadata": response}}
    ((_, _, said),) = images_of_metadata(json.dumps({"Envelope": metadata}).encode(), "altalign")
    when = "2026-02-03T04:05:06Z"
    expected = [("x-robots-tag", "noimageai", "page header", when), ("meta-robots", "noai", "page meta", when)]
    assert preferences.from_text(said) == expected
    for broken in ({"Metas": 3}, {"Metas": {"a": 1}}):
        page["Head"] = broken
        with pytest.raises(ValueError, match="Metas"):
            images_of_metadata(json.dumps({"Envelope": metadata}).encode(), "altalign")


PNG = encoded(picture(64, 64))
NO = "X-Robots-Tag: noai\r\n"


def pages(*names: str, headers: str = "", image: str = "/a.png") -> list[bytes]:
    html = f'<img src="{image}" alt="the picture of a page">'.encode()
    return [response(f"https://a.example/{name}", html, headers=headers) for name in names]


def rows_of(folder: Path, more: str = "") -> dict[str, dict]:
    """All rows of a curation of the archives in a folder, kept and dropped, by page and URL of the image."""
    inputs = f'[[input]]\nkind = "warc"\npaths = ["{folder}/*.warc"]\n'
    (folder / "c.toml").write_text(f'[run]\nfolder = "{folder}/run"\n{inputs}[image]\nshort_side_above_px = 1\n{more}')
    assert main(["curate", str(folder / "c.toml"), "--restart"]) == 0
    paths = [*(folder / "run").glob("shards/*.parquet"), *(folder / "run").glob("dropped/*/*.parquet")]
    return {row["page_url"]: row for path in paths for row in pq.read_table(path).to_pylist()}


@pytest.mark.runs
@pytest.mark.parametrize("compression", ["gzip", "whole", "whole zstd"])
def test_headers_and_files_of_sites_are_heard_however_an_archive_is_compressed(
    tmp_path: Path, compression: str, capsys: pytest.CaptureFixture[str]
) -> None:
    robots = "https://a.example/robots.txt"
    write(
        tmp_path / "1.warc",
        [
            *pages("page"),
            *pages("free", image="https://b.example/b.png"),
            response("https://b.example/b.png", PNG, "image/png"),
            response("https://a.example/a.png", PNG, "image/png", headers="Content-Usage: train-ai=n\r\n"),
            response(robots, b"User-agent: *\nContent-Signal: ai-train=yes", "text/plain"),
        ],
        compression,
    )
    # of several captures the last counts; what is no text of a robots.txt says nothing
    broken = response("https://b.example/robots.txt", b"\xff\0" * 300_000, "text/plain")
    write(
        tmp_path / "2.warc",
        # as some servers send it, and longer than what is kept of a page
        [response(robots, b"#" * 2_000 + b"\nUser-agent: *\nContent-Signal: ai-train=no", "text/html"), broken],
        compression,
    )
    row = rows_of(tmp_path)["https://a.example/page"]
    assert (row["reason"], row["failed"]) == (
        "opt_out_content_usage",
        ["opt_out_content_usage", "opt_out_content_signal"],
    )
    assert [tuple(each.values())[:3] for each in row["preferences"]] == [
        ("content-usage", "train-ai=n", "image header"),
        ("content-signal", "ai-train=no", "robots.txt"),
    ]
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "run"), "--url", "https://a.example/a.png"]) == 0
    said = capsys.readouterr().out
    assert "said      content-usage: train-ai=n (image header, 2026-01-01T00:00:00Z)" in said
    assert "opposes it, [fetch] purpose = train" in said
    row = rows_of(tmp_path, '[fetch]\npurpose = "train-other"\nuser_agent = "mine/1"\n')["https://a.example/page"]
    assert row["failed"] == ["opt_out_content_signal"]


@pytest.mark.runs
def test_what_a_page_says_is_of_its_own_pairs_alone(tmp_path: Path) -> None:
    other = [response("https://a.example/b.png", encoded(picture(80, 64)), "image/png")]
    records = [
        *pages("free"),
        *pages("not", headers=NO),
        *pages("only", headers=NO, image="/b.png"),
        response("https://a.example/a.png", PNG, "image/png"),
        *other,
        record("https://a.example/robots.txt", b"User-agent: *\nDisallow: /", kind="metadata"),
    ]
    write(tmp_path / "1.warc", [each.replace(b"of a page", b"of page %d" % at) for at, each in enumerate(records)], "")
    rows = rows_of(tmp_path)
    assert {page: row.get("reason") for page, row in rows.items()} == {
        "https://a.example/free": None,
        "https://a.example/not": "opt_out_x_robots_tag",
        "https://a.example/only": "opt_out_x_robots_tag",
    }
    assert rows["https://a.example/free"]["preferences"] == []
    assert rows["https://a.example/only"]["found_sha256"] is None  # nobody looked at it
    assert main(["audit", str(tmp_path / "run"), "--json"]) == 0


def test_what_is_dropped_early_says_what_its_page_said_and_null_where_nobody_looked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.warc.gz", pages("page", headers=NO))
    (found,) = read.read(str(path), InputSettings(paths=["x"]))
    assert preferences.from_text(found.rows["page_said"][0].as_py()) == [
        ("x-robots-tag", "noai", "page header", "2026-01-01T00:00:00Z")
    ]
    (tmp_path / "a.csv").write_text("url,caption\nhttp://a/b.png,a caption\n")
    (found,) = read.read(str(tmp_path / "a.csv"), InputSettings(paths=["x"], kind="table"))
    assert found.rows["page_said"].to_pylist() == [None]


# Rows -----------------------------------------------------------------------------------------------------------------


def test_reasons_of_a_row_are_those_of_its_image_and_of_its_page_in_order() -> None:
    image_of = np.array([0, 0, 1, 2, 3])
    outcomes = [Outcome(None, said=(FREE,)), Outcome(DropReason.HTTP_STATUS, 404), Outcome(DropReason.URL_BLOCKED)]
    outcomes.append(Outcome(DropReason.OPT_OUT_ROBOTS_TXT, said=()))
    pages: list[list[Said] | None] = [[NOAI], None, [NOAI], [NOAI], []]
    heard = statements.of_rows(TRAIN, pages, outcomes, image_of)
    assert heard.failed == [
        ["opt_out_x_robots_tag"],
        [],
        ["http_status", "opt_out_x_robots_tag"],
        ["opt_out_x_robots_tag", "url_blocked"],
        ["opt_out_robots_txt"],
    ]
    assert heard.said == [(NOAI, FREE), (FREE,), (NOAI,), (NOAI,), ()]
    assert statements.of_rows(Listener("keep all", "altalign"), pages, outcomes, image_of).failed[0] == []


def test_an_image_is_left_out_where_all_its_pages_oppose() -> None:
    image_of = np.array([0, 0, 1, 1, 2])
    found = statements.excluded(TRAIN, [[NOAI], [], [NOAI], [NOAI], None], image_of)
    assert found == {1: Outcome(DropReason.OPT_OUT_X_ROBOTS_TAG)}
    assert statements.excluded(Listener("keep all", "altalign"), [[NOAI]], np.array([0])) == {}


def test_what_opposes_counts_behind_many_harmless_statements() -> None:
    """Those that are kept are some of each notation."""
    harmless = [Said("x-robots-tag", f"max-snippet:{number}", "image header", None) for number in range(40)]
    image = marks.image_of({"xmp": "<plus:DataMining>DMI-PROHIBITED</plus:DataMining>"}, "jpeg")
    said, reasons = statements.look(TRAIN, image, harmless)
    assert reasons == [DropReason.OPT_OUT_IPTC]
    assert len(said) == preferences.STATEMENTS_AT_MOST
    assert [each.notation for each in said].count("iptc") == 1
    said, reasons = statements.look(TRAIN, image[:200], [*harmless, NOAI])
    assert reasons == [DropReason.OPT_OUT_X_ROBOTS_TAG]

"""WAT files: links of images as pages would give them."""

import json

import pytest

from altalign.settings.curate import InputSettings
from tests.support.archives import read_all, record, write

SETTINGS = InputSettings(kind="wat", paths=["-"])


def metadata(
    links: object, *, url: object = "http://a/dir/page", base: str | None = None, status: str | None = "200"
) -> bytes:
    response = {
        "HTML-Metadata": {"Links": links, "Head": {} if base is None else {"Base": base}},
        "Response-Message": {} if status is None else {"Status": status},
    }
    return json.dumps(
        {
            "Envelope": {
                "WARC-Header-Metadata": {"WARC-Target-URI": url},
                "Payload-Metadata": {"HTTP-Response-Metadata": response},
            }
        }
    ).encode()


def read_of(tmp_path, *blocks: bytes) -> tuple[list[dict], list[dict]]:
    records = [record(None, b"x", kind="warcinfo")] + [
        record("http://a/", block, kind="metadata", content_type="application/json") for block in blocks
    ]
    rows, broken, places = read_all(write(tmp_path / "a.warc.wat.gz", records), SETTINGS)
    assert places == []
    return rows, broken


def image(url: str | None = "x.png", alt: str | None = "an alt") -> dict:
    return {"path": "IMG@/src", **({} if url is None else {"url": url}), **({} if alt is None else {"alt": alt})}


def test_links_of_images_give_candidates_with_the_verdicts_of_pages(tmp_path):
    links = [
        {"path": "A@/href", "url": "/a", "alt": "no image"},
        image("x//y.png?a=1&amp;b=2#f", " Tom &amp; Jerry "),
        image(alt=None),
        image(alt=" "),
        image("data:image/png;base64,xxxx"),
        image(None),
        image("http://["),
        image("//b/z.png"),
    ]
    rows, broken = read_of(tmp_path, metadata(links))
    assert broken == []
    assert [(row["image_url"], row["caption"], row["reason"]) for row in rows] == [
        ("http://a/dir/x//y.png?a=1&b=2", "Tom & Jerry", None),
        ("http://a/dir/x.png", "", "alt_missing"),
        ("http://a/dir/x.png", "", "alt_empty"),
        (None, "an alt", "url_invalid"),
        (None, "an alt", "url_invalid"),
        ("http://[", "an alt", "url_invalid"),
        ("http://b/z.png", "an alt", None),
    ]
    assert {row["page_url"] for row in rows} == {"http://a/dir/page"}


def test_a_base_moves_relative_urls(tmp_path):
    rows, _ = read_of(tmp_path, metadata([image()], base="../other/"), metadata([image()], base="data:x"))
    assert [row["image_url"] for row in rows] == ["http://a/other/x.png", "http://a/dir/x.png"]


def test_records_about_no_page_or_another_status_have_no_images(tmp_path):
    other = json.dumps(
        {"Envelope": {"Payload-Metadata": {"HTTP-Request-Metadata": {}}, "WARC-Header-Metadata": {}}}
    ).encode()
    assert read_of(tmp_path, metadata([image()], status="404"), metadata([]), other, b'{"Container": {}}', b"{}") == (
        [],
        [],
    )
    assert len(read_of(tmp_path, metadata([image()], status=None))[0]) == 1


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 200_000,
        b'{"Envelope": []}',
        metadata([image()], url=None),
        metadata([image()], url=""),
        metadata({"a": 1}),
        b'"x"',
        b"\xff\xfe",
    ],
    ids=range(10),
)
def test_a_record_of_another_form_is_broken(tmp_path, block):
    rows, broken = read_of(tmp_path, metadata([image()]), block, metadata([image()]))
    assert len(rows) == 2
    assert len(broken) == 1


def test_odd_values_do_not_cost_the_page(tmp_path):
    odd = [{"path": "IMG@/src", "url": 1, "alt": 2}, 3, image(alt="half \ud83d a pair")]
    rows, broken = read_of(tmp_path, metadata(odd), metadata([image()]).replace(b"an alt", b"\xff alt"))
    assert broken == []
    assert [(row["caption"], row["reason"]) for row in rows] == [
        ("", "alt_missing"),
        ("half \ufffd a pair", None),
        ("\ufffd alt", None),
    ]

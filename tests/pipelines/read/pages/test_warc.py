"""Web archives: what is a page, what is an image's place, and what a broken record costs."""

import errno
import gzip
import io
import random
import zlib
from pathlib import Path

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.errors import UnreadableError
from altalign.pipelines import read
from altalign.pipelines.read.pages import records
from altalign.settings.curate import InputSettings
from tests.shared_data import SHARED, needs_shared
from tests.support.archives import image, page, record, response, write, zstd
from tests.support.archives import read_all as read_all_of

SETTINGS = InputSettings(paths=["-"])


def gz(data: bytes) -> bytes:
    """A gzip member that does not depend on the time: parameters of tests are compared between workers."""
    return gzip.compress(data, mtime=0)


FORMS = ["gzip", "zstd", "bare", "whole", "whole zstd"]


def read_all(path: Path) -> tuple[list[dict], list[dict], list[dict]]:
    return read_all_of(path, SETTINGS)


def captions(path: Path) -> list[str]:
    return [row["caption"] for row in read_all(path)[0]]


def bytes_of(path: Path, place: dict) -> bytes | None:
    found = read.Captured.of_copy(place["bytes"]) if place["bytes"] else read.captured(str(path), place["offset"])
    return found and found.data


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("form", FORMS)
def test_every_place_leads_to_the_bytes_of_its_record_in_any_compression(tmp_path, form):
    records = [
        record(None, b"software: x\r\n", kind="warcinfo", content_type="application/warc-fields"),
        page(1, images=2),
        image("http://a/1-0.png#fragment"),
        record(
            "http://a/1", b"GET / HTTP/1.1\r\n\r\n", kind="request", content_type="application/http; msgtype=request"
        ),
        record("http://a//resource", b"\x89PNG resource", kind="resource", content_type="image/png"),
        record("http://a/meta", b"fetchTimeMs: 1", kind="metadata", content_type="application/warc-fields"),
        response("http://a/moved", b"", status="301 Moved"),
        response("http://a/noise.jpg", noise(300_000), "image/jpeg"),
        response("dns:a", b"x"),
        image("HTTP://A:80/%7e x/ü"),
        page(2),
    ]
    path = write(tmp_path / "a.warc", records, form)
    rows, broken, places = read_all(path)
    assert broken == []
    assert [row["image_url"] for row in rows] == ["http://a/1-0.png", "http://a/1-1.png", "http://a/2-0.png"]
    found = {place["image_identity"]: bytes_of(path, place) for place in places}
    assert list(found) == [
        "http://a/1",
        "http://a/1-0.png",
        "http://a//resource",
        "http://a/noise.jpg",
        "http://a/%7e%20x/%C3%BC",
        "http://a/2",
    ]
    assert found["http://a/1-0.png"] == b"\x89PNG http://a/1-0.png#fragment"
    assert found["http://a//resource"] == b"\x89PNG resource"
    assert found["http://a/noise.jpg"] == noise(300_000)
    assert found["http://a/1"].startswith(b"<p><img")
    assert all(
        (place["bytes"] is None) == (form in ("gzip", "zstd", "bare") or number == 0)
        for number, place in enumerate(places[1:], 1)
    )


def test_members_of_two_records_and_of_one_are_told_apart(tmp_path):
    images = [image(f"http://a/{number}") for number in range(6)]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gz(images[0] + images[1]) + gz(images[2]) + gz(images[3] + images[4]) + gz(images[5]))
    _, broken, places = read_all(path)
    assert broken == []
    assert [place["bytes"] is None for place in places] == [True, False, True, True, False, True]
    assert [bytes_of(path, place) for place in places] == [b"\x89PNG http://a/%d" % number for number in range(6)]


def test_blocks_that_records_do_not_begin_at_give_bytes_not_offsets(tmp_path):
    images = [image(f"http://a/{number}") for number in range(200)]
    data = b"".join(images)
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(gz(data[at : at + 1_000]) for at in range(0, len(data), 1_000)))
    _, broken, places = read_all(path)
    assert broken == []
    assert [bytes_of(path, place) for place in places] == [b"\x89PNG http://a/%d" % number for number in range(200)]


BODY = b'<img src="x.png" alt="a caption">' + b" " * 1_000
CHUNKED = (
    b"".join(b"%x;ext=1\r\n%s\r\n" % (len(BODY[at : at + 100]), BODY[at : at + 100]) for at in range(0, len(BODY), 100))
    + b"0\r\nTrailer: x\r\n\r\n"
)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Transfer-Encoding: chunked\r\n", CHUNKED),
        ("Transfer-Encoding: chunked\r\n", BODY),
        ("Transfer-Encoding: chunked\r\n", CHUNKED[:-400]),
        ("Content-Encoding: gzip\r\n", gz(BODY)),
        ("Content-Encoding: GZIP\r\n", gz(BODY)[:-10]),
        ("content-encoding: gzip\r\n", BODY),
        ("Content-Encoding: x-gzip\r\n", gz(BODY)),
        ("Content-Encoding: br\r\n", brotli.compress(BODY)),
        ("Content-Encoding: br\r\n", BODY),
        ("Content-Encoding: deflate\r\n", zlib.compress(BODY)),
        ("Content-Encoding: deflate\r\n", zlib.compress(BODY)[2:-4]),
        ("Content-Encoding: zstd\r\n", zstd(BODY)),
        ("Content-Encoding: utf-8\r\n", BODY),
        ("Content-Encoding: gzip, br\r\n", brotli.compress(gz(BODY))),
        (
            "Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n",
            b"%x\r\n" % len(gz(BODY)) + gz(BODY) + b"\r\n0\r\n\r\n",
        ),
    ],
)
def test_bodies_are_decoded_and_those_that_a_crawler_has_decoded_stay(tmp_path, headers, body):
    path = write(tmp_path / "a.warc.gz", [response("http://a/", body, headers=headers)])
    _, broken, places = read_all(path)
    assert broken == []
    assert captions(path) == ["a caption"]
    assert (bytes_of(path, places[0]) or b"").startswith(BODY[:300])


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Encoding: gzip\r\n", b"\x1f\x8b\x08garbage" * 10),
        ("Content-Encoding: br\r\n", b"\xff\xfegarbage" * 10),
        ("Content-Encoding: gzip\r\n", gz(bytes(100 << 20))),
        ("Content-Encoding: br\r\n", brotli.compress(bytes(100 << 20))),
        ("Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\nnothing\r\n"),
    ],
    ids=["gzip", "br", "gzip bomb", "br bomb", "chunks"],
)
def test_a_broken_or_exploding_body_costs_its_page(tmp_path, headers, body):
    path = write(tmp_path / "a.warc.gz", [page(1), response("http://a/bad", body, headers=headers), page(2)])
    rows, broken, places = read_all(path)
    assert [row["page_url"] for row in rows] == ["http://a/1", "http://a/2"]
    assert [entry["offset"] for entry in broken] == [len(gz(page(1)))]
    assert [place["image_identity"] for place in places] == ["http://a/1", "http://a/bad", "http://a/2"]


@pytest.mark.parametrize("kind", ["text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "text/html;"])
def test_html_of_any_spelling_is_a_page(tmp_path, kind):
    assert captions(write(tmp_path / "a.warc", [response("http://a/", BODY, kind)], "bare")) == ["a caption"]


HTML = b"<!doctype html>" + BODY
AS_HTML = "WARC-Identified-Payload-Type: text/html\r\n"


@pytest.mark.parametrize(
    ("headers", "fields", "body", "is_page"),
    [
        ("", "", HTML, True),
        ("", "", b" \n<?xml version='1.0'?>\n" + HTML, True),
        ("", "", gz(HTML), False),
        ("Content-Encoding: gzip\r\n", "", gz(HTML), True),
        ("Content-Encoding: gzip\r\n", "", gz(HTML)[:12] + b"\xff" * 20, False),
        ("", "", b"\x89PNG" + HTML, False),
        ("Content-Type:\r\n", "", HTML, True),
        ("Content-Type: html\r\n", "", HTML, True),
        ("Content-Type: */*\r\n", "", HTML, True),
        ("Content-Type: text/html, text/html; charset=utf-8\r\n", "", BODY, True),
        ("Content-Type: text/html\r\nContent-Type: text/html\r\n", "", BODY, True),
        ("Content-Type: text/plain\r\nContent-Type: text/html\r\n", "", BODY, True),
        ("Content-Type: text/html\r\nContent-Type: text/plain\r\n", "", HTML, False),
        ("Content-Type: text/html\r\nContent-Type: bad\r\n", "", BODY, True),
        ("Content-Type: text/plain\r\n", "", HTML, False),
        ("Content-Type: text/plain\r\n", AS_HTML, BODY, True),
        ("", AS_HTML, BODY, True),
        ("Content-Type: image/png\r\n", AS_HTML, BODY, True),
        ("Content-Type: text/html\r\n", "WARC-Identified-Payload-Type: image/png\r\n", BODY, True),
        ("Content-Type: text/html\r\nContent-Encoding: br-x\r\nContent-Encoding: gzip\r\n", "", gz(BODY), True),
        ("Content-Type: text/html\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\n", "", gz(gz(BODY)), True),
    ],
)
@pytest.mark.parametrize("compression", ["gzip", "whole"])
def test_a_page_is_what_browsers_and_the_crawler_take_for_one(tmp_path, headers, fields, body, is_page, compression):
    made = record("http://a/", b"HTTP/1.1 200 OK\r\n" + headers.encode() + b"\r\n" + body)
    made = made.replace(b"WARC-Date", fields.encode() + b"WARC-Date", 1)
    rows, broken, places = read_all(write(tmp_path / "a.warc.gz", [made], compression))
    assert ([row["caption"] for row in rows], broken) == (["a caption"] * is_page, [])
    assert [place["image_identity"] for place in places] == ["http://a/"]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("text/html; charset=utf-8; charset=x", ("text/html", "utf-8")),
        ('TEXT/HTML ; CHARSET="koi8-r"', ("text/html", "koi8-r")),
        ("text/html; charset=koi8-r, text/html", ("text/html", "koi8-r")),
        ("text/html; charset=koi8-r, text/html; charset=gbk", ("text/html", "gbk")),
        ("text/html; charset=koi8-r, text/plain", ("text/plain", None)),
        ('text/html; a="b, text/plain"; charset=gbk', ("text/html", "gbk")),
        ("text/html; charset=, */*", ("text/html", None)),
        ('"', ("", None)),
    ],
)
def test_of_several_types_the_last_valid_one_counts(header, expected):
    assert records.media_type(header) == expected


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("text/plain", "200 OK"),
        ("", "200 OK"),
        ("text/html", "404 Not Found"),
        ("text/html", "206 Partial"),
        ("text/html", "304"),
    ],
)
def test_other_responses_are_no_pages(tmp_path, kind, status):
    rows, broken, places = read_all(
        write(tmp_path / "a.warc", [response("http://a/", BODY, kind, status=status)], "bare")
    )
    assert (rows, broken) == ([], [])
    assert len(places) == (status == "200 OK")


# Broken archives ------------------------------------------------------------------------------------------------------


def damaged(data: bytes, at: int, size: int = 40) -> bytes:
    return data[:at] + bytes(byte ^ 0x5A for byte in data[at : at + size]) + data[at + size :]


def spoilt_members() -> dict[str, bytes]:
    big = response("http://a/bad", b"<img src=y.png alt=lost>" + noise(50_000))
    member = gz(big)
    return {
        "damaged in the middle": damaged(member, 20_000),
        "damaged at the start": damaged(member, 12),
        "damaged in its gzip head": damaged(member, 0, 4),
        "a wrong checksum": damaged(member, len(member) - 8, 4),
        "cut": member[: len(member) // 2],
        "no WARC record": gz(b"XARC/1.0\r\n" + big),
        "Content-Length too large": gz(response("http://a/bad", BODY, length=5_000)),
        "no URL": gz(response(None, BODY)),
        "Content-Length that is no number": gz(page(9).replace(b"Content-Length: ", b"Content-Length: x")),
        "Content-Length missing": gz(page(9).replace(b"Content-Length: ", b"Length: ")),
        "two Content-Length": gz(page(9).replace(b"Content-Length: ", b"Content-Length: 1\r\nContent-Length: ", 1)),
        "WARC-Type missing": gz(page(9).replace(b"WARC-Type: ", b"Type: ")),
        "no HTTP": gz(record("http://a/bad", b"\xff\xfe" * 100)),
        "endless HTTP header": gz(response("http://a/bad", BODY, headers=f"X: {'y' * 2_000_000}\r\n")),
        "endless WARC header": gz(response("http://a/bad" + "y" * 2_000_000, BODY)),
        "garbage between members": b"garbage" * 100,
    }


@pytest.mark.parametrize("name", spoilt_members())
def test_a_broken_member_costs_that_record(tmp_path, name):
    before, after = [gz(each) for each in (page(1), image("http://a/i"))], [gz(each) for each in (page(2), page(3))]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join([*before, spoilt_members()[name], *after]))
    rows, broken, places = read_all(path)
    assert [row["page_url"] for row in rows] == ["http://a/1", "http://a/2", "http://a/3"]
    assert [entry["offset"] for entry in broken] == [sum(map(len, before))]
    assert [place["image_identity"] for place in places] == ["http://a/1", "http://a/i", "http://a/2", "http://a/3"]
    assert bytes_of(path, places[1]) == b"\x89PNG http://a/i"


@pytest.mark.parametrize(
    "name", ["damaged in the middle", "cut", "no WARC record", "garbage between members", "damaged at the start"]
)
@pytest.mark.parametrize("at", ["first", "last", "twice"])
def test_a_broken_member_at_an_end_or_two_of_them_cost_just_those(tmp_path, name, at):
    spoilt, good = spoilt_members()[name], gz(page(1))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(
        {"first": spoilt + good, "last": good + spoilt, "twice": spoilt + good + spoilt + spoilt + good}[at]
    )
    rows, broken, _ = read_all(path)
    assert {row["page_url"] for row in rows} == {"http://a/1"}
    assert len(rows) == (2 if at == "twice" else 1)
    assert len(broken) in ((2, 3) if at == "twice" else (1,))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [3, 700])
def test_of_a_truncated_archive_only_the_cut_record_is_lost(tmp_path, form, cut):
    records = [
        page(1),
        page(2),
        *(
            response(f"http://a/{number}", b"<img src=y.png alt=noise>" + noise(200_000 + number))
            for number in (3, 4, 5)
        ),
    ]
    path = write(tmp_path / "a.warc", records, form)
    path.write_bytes(path.read_bytes()[:-cut])
    rows, broken, _ = read_all(path)
    lost = 0 if cut == 3 else 1  # what is cut off by 3 bytes is no part of the record
    assert [row["page_url"] for row in rows] == [f"http://a/{number}" for number in range(1, 6 - lost)]
    # a frame without its end is counted, though its record is read
    assert len(broken) == lost or (cut == 3 and "zstd" in form)


@pytest.mark.parametrize("name", ["no WARC record", "wrong length", "cut in its head"])
def test_a_broken_record_of_an_archive_without_compression_costs_all_behind_it_and_says_so(tmp_path, name):
    bad = {
        "no WARC record": b"XARC/1.0\r\nA: b\r\n\r\nnothing",
        "wrong length": response("http://a/bad", b"x" * 5_000, "image/png", length=2_000),
        "cut in its head": page(3)[:40],
    }[name]
    path = write(tmp_path / "a.warc", [page(1), page(2), bad, *([page(3)] if len(bad) != 40 else [])], "bare")
    rows, broken, _ = read_all(path)
    assert [row["page_url"] for row in rows] == ["http://a/1", "http://a/2"]
    (entry,) = broken
    assert "what is behind it is not read, for the archive has no gzip members" in entry["error"]
    assert entry["offset"] >= len(page(1) + page(2))


def test_a_file_without_any_record_cannot_be_read(tmp_path):
    for name, data in [
        ("random", noise(100_000)),
        ("text", b"hello"),
        ("gzip", gz(b"hello" * 1_000)),
        ("zstd", zstd(b"hello")),
        ("magic", b"\x1f\x8b\x08"),
    ]:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(UnreadableError, match=f"{name}: no WARC record in it"):
            read_all(path)


def test_a_file_without_bytes_has_no_rows(tmp_path):
    (tmp_path / "a.warc.gz").touch()
    assert read_all(tmp_path / "a.warc.gz") == ([], [], [])


def test_a_missing_file_cannot_be_read(tmp_path):
    with pytest.raises(UnreadableError, match=r"none\.warc"):
        read_all(tmp_path / "none.warc")


def test_headers_of_any_bytes_are_read(tmp_path):
    records = [
        response("http://a/\udcff\udcfe", BODY),
        response("no url", BODY + b'<img src="http://b/" alt="absolute">'),
        response("<http://a/brackets>", BODY),
    ]
    rows, broken, places = read_all(write(tmp_path / "a.warc.gz", records))
    assert broken == []
    assert [(row["reason"], row["page_url"]) for row in rows] == [
        (None, "http://a/\ufffd\ufffd"),
        ("url_invalid", "no url"),
        (None, "no url"),
        (None, "http://a/brackets"),
    ]
    assert len(places) == 2


def test_a_copied_page_keeps_its_head_alone_and_an_image_called_a_page_all(tmp_path):
    records = [
        image("http://a/i"),
        response("http://a/p", b"<p>" + b"x" * 5_000),
        response("http://a/q", b"\x89PNG\0" + b"x" * 5_000),
    ]
    _, _, places = read_all(write(tmp_path / "a.warc.gz", records, "whole"))
    copies = [read.Captured.of_copy(place["bytes"] or b"") for place in places]
    assert [len(copy.data) for copy in copies] == [0, 1_024, 5_005]


def test_there_are_no_bytes_where_there_is_no_record(tmp_path):
    path = write(tmp_path / "a.warc.gz", [image("http://a/i")])
    assert read.captured(str(path), 5) is None
    assert read.captured(str(path), 10_000) is None


def test_many_images_of_one_page_come_in_bounded_stretches(tmp_path):
    path = write(tmp_path / "a.warc.gz", [page(1, images=20_000)])
    stretches = [found.rows.num_rows for found in read.read(str(path), SETTINGS)]
    assert max(stretches) <= 8_192
    assert sum(stretches) == 20_000


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    form=st.sampled_from(["gzip", "bare", "whole"]),
    spoil=st.sampled_from(["flip", "cut", "insert"]),
)
def test_damage_anywhere_costs_few_records_and_never_the_reader(tmp_path_factory, seed, form, spoil):
    chance = random.Random(seed)
    path = write(tmp_path_factory.getbasetemp() / "any.warc", [page(number) for number in range(8)], form)
    data = path.read_bytes()
    at = chance.randrange(40, len(data))
    spoilt = {
        "flip": data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :],
        "cut": data[:at],
        "insert": data[:at] + b"????" + data[at:],
    }[spoil]
    path.write_bytes(spoilt)
    try:
        rows, broken, places = read_all(path)
    except UnreadableError:
        assert form == "whole" or (spoil == "cut" and at < 100)  # cut in its first bytes, it has no record
        return
    if form == "gzip" and spoil != "cut":
        assert len(rows) >= 6
        assert len(rows) + len(broken) >= 8
    assert len(rows) <= 8
    assert len(places) <= 8


# Real data ------------------------------------------------------------------------------------------------------------


@needs_shared
@pytest.mark.parametrize(
    ("language", "in_archive", "images", "missing"),
    [("en-US", 344, 61, {"gnome", "kde", "kmail"}), ("ja-JP", 346, 63, {"kmail"})],
)
def test_the_handbooks_give_exactly_what_is_known_of_them(language, in_archive, images, missing):
    path = SHARED / f"handbook-{language}.warc.gz"
    rows, broken, places = read_all(path)
    by_url = {place["image_identity"]: place for place in places}
    found = [row["image_identity"] for row in rows if row["image_identity"] in by_url]
    assert broken == []
    assert len(rows) == 347
    assert {row["reason"] for row in rows} == {None}
    assert (len(found), len(set(found))) == (in_archive, images)
    assert {Path(row["image_url"]).stem for row in rows if row["image_identity"] not in by_url} == missing
    assert sum("images//" in row["image_url"] for row in rows) == 254
    assert len({row["caption"] for row in rows}) == 60
    for url in sorted(set(found))[::10]:
        assert (bytes_of(path, by_url[url]) or b"")[:4] in (b"\x89PNG", b"GIF8", b"<?xm", b"<svg")


class FailingFile(io.BytesIO):
    """A file on a disk of which one sector cannot be read, so often."""

    def __init__(self, data: bytes, bad_at: int, errors: list[OSError]):
        super().__init__(data)
        self._bad_at, self._errors = bad_at, errors

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() + (len(self.getbuffer()) if size is None or size < 0 else size) > self._bad_at and self._errors:
            raise self._errors.pop()
        return super().read(size)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad_at", [0, 100, 200_000])
def test_a_disk_error_in_an_image_is_no_image_that_is_missing(tmp_path, monkeypatch, form, bad_at):
    path = write(tmp_path / "a.warc", [response("http://a/x.jpg", noise(600_000), "image/jpeg")], form)
    data = path.read_bytes()
    monkeypatch.setattr(
        "altalign.storage.open_read", lambda _: FailingFile(data, bad_at, [OSError(errno.EIO, "Input/output error")])
    )
    with pytest.raises(UnreadableError, match=r"a\.warc: cannot be read as WARC .*Input/output error"):
        read.captured(str(path), 0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad_at", [100, 200_000, 900_000])
def test_a_disk_error_in_an_archive_is_no_broken_record(tmp_path, monkeypatch, form, bad_at):
    path = write(
        tmp_path / "a.warc",
        [response(f"http://a/{size}.jpg", noise(size), "image/jpeg") for size in (600_000, 600_001)],
        form,
    )
    data, errors = path.read_bytes(), [OSError(errno.EIO, "Input/output error")]
    monkeypatch.setattr("altalign.storage.open_read", lambda _: FailingFile(data, bad_at, errors))
    with pytest.raises(UnreadableError, match=r"a\.warc: cannot be read as WARC .*Input/output error"):
        read_all(path)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_breaks_off_is_still_an_image_that_is_missing(tmp_path, form):
    path = write(tmp_path / "a.warc", [response("http://a/x.jpg", noise(60_000), "image/jpeg")], form)
    path.write_bytes(path.read_bytes()[:30_000])
    assert read.captured(str(path), 0) is None


@pytest.mark.parametrize("form", ["gzip", "bare"])
@pytest.mark.parametrize("size", [2, 5, 12, 30])
def test_a_last_record_cut_in_its_head_is_counted(tmp_path, form, size):
    whole, cut = page(1), (gz(page(2)) if form == "gzip" else page(2))[:size]
    path = tmp_path / "a.warc"
    path.write_bytes((gz(whole) if form == "gzip" else whole) + cut)
    _, broken, _ = read_all(path)
    assert len(captions(path)) == 1
    assert [entry["offset"] for entry in broken] == [len(gz(whole) if form == "gzip" else whole)]


@pytest.mark.parametrize("size", [5, 30, 80, 134])
def test_a_member_that_ends_in_a_head_costs_that_record_alone(tmp_path, size):
    before, after = gz(page(1)), gz(image("http://a/i"))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(before + gz(image("http://a/cut")[:size]) + after)
    _, broken, places = read_all(path)
    assert [place["image_identity"] for place in places] == ["http://a/1", "http://a/i"]
    assert [entry["offset"] for entry in broken] == [len(before)]


def test_an_empty_member_is_no_record(tmp_path):
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gz(page(1)) + gz(b"") + gz(page(2)) + gz(b"") + gz(b""))
    rows, broken, _ = read_all(path)
    assert [row["page_url"] for row in rows] == ["http://a/1", "http://a/2"]
    assert broken == []


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_archive_has_no_broken_end(tmp_path, form):
    assert read_all(write(tmp_path / "a.warc", [page(1), page(2)], form))[1] == []


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_dictionary_in_the_first_frame_of_zstd_is_no_broken_record(tmp_path, is_packed):
    trained = zstandard.train_dictionary(4_096, [page(number, images=number % 7 + 1) for number in range(500)])
    frame = zstandard.compress(trained.as_bytes()) if is_packed else trained.as_bytes()
    packer, path = zstandard.ZstdCompressor(dict_data=trained), tmp_path / "a.warc.zst"
    head = b"\x5d\x2a\x4d\x18" + len(frame).to_bytes(4, "little") + frame
    path.write_bytes(head + b"".join(packer.compress(page(number)) for number in (1, 2, 3)))
    rows, broken, places = read_all(path)
    assert ([row["page_url"] for row in rows], broken) == (["http://a/1", "http://a/2", "http://a/3"], [])
    assert all((bytes_of(path, place) or b"").startswith(b"<p><img") for place in places)

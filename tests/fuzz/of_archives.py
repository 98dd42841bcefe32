"""Web archives and tars under attack: what damage leaves whole comes out as it was, and no byte is in no record."""

import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from typing import Any, TypeGuard

from altalign.curation import InputSettings
from altalign.demo import archive as demo_archive
from altalign.pipelines import read
from altalign.pipelines.read.pages import image_elements, records
from tests.fuzz.mutate import common_ends, mutate, with_content_length
from tests.fuzz.target import Everything, Target, read_in_two_ways
from tests.pipelines.read.pages import archives

_HEAD_END = re.compile(rb"\r\n\r\n")  # as FastWARC has it, to which a lone LF is a header
_SHORT_LINE = 5  # FastWARC takes lines of fewer bytes between records for blank ones
_BLANK = b"\0\r\n\t "
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": partial(gzip.compress, mtime=0),
    ".zst": archives.zstd,
}
_WARC_TOKENS = (
    *(
        b"WARC/1.0\r\n",
        b"WARC/1.1\r\nWARC-Type: response\r\n",
        b"\r\n\r\n",
        b"\r\n",
        b"\n\n",
        b"Content-Length: ",
        b"WARC-Target-URI: ",
        b"WARC-Type: ",
    ),
    *(
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 ",
        b"Content-Type: text/html; charset=",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
    ),
    *(
        b"Content-Encoding: br\r\n",
        b"Content-Encoding: zstd\r\n",
        b"Content-Encoding: deflate\r\n",
        b"\x1f\x8b\x08\0",
        b"\x28\xb5\x2f\xfd",
        b"\x5d\x2a\x4d\x18",
    ),
    *(
        b"response",
        b"resource",
        b"metadata",
        b"utf-16",
        b"<img src=a alt=b>",
        b"\0",
        b"\xff",
        b"-1",
        b"99999999999999999999",
    ),
)
_TAR_TOKENS = (
    b"ustar\x00",
    b"ustar  \0",
    b"0000644\0",
    b"\0" * 512,
    b"\x80\0\0\0\0\0\0\1",
    b"L",
    b"x",
    b"path=a\n",
    b"12 size=99\n",
    b".jpg",
    b".txt",
    b"./",
    b"../",
    b"/",
)


# Archives -------------------------------------------------------------------------------------------------------------


def _html(number: int, charset: str = "utf-8") -> bytes:
    images = "".join(
        f'<p><img src="/i/{number}-{each}.png" alt="ein Bild № {each} of page {number}">' for each in range(3)
    )
    return f"<!doctype html><meta charset={charset}><base href=//b.example/{number}/><title>ü</title>{images}".encode(
        charset, "replace"
    )


@cache
def _records() -> tuple[bytes, ...]:
    """Records of every kind; no two responses of one URL."""
    squeeze = zlib.compressobj(wbits=-15)
    bodies = {
        "plain": (_html(1), "text/html; charset=utf-8", ""),
        "latin": (_html(2, "windows-1252"), "text/html", ""),
        "utf16": (_html(3, "utf-16"), "text/html;charset=utf-16", ""),
        "gzip": (gzip.compress(_html(4), mtime=0), "text/html", "Content-Encoding: gzip\r\n"),
        "deflate": (squeeze.compress(_html(5)) + squeeze.flush(), "text/html", "Content-Encoding: deflate\r\n"),
        "zstd": (archives.zstd(_html(6)), "application/xhtml+xml", "Content-Encoding: zstd\r\n"),
        "chunked": (demo_archive.chunked(_html(7), 60), "text/html", "Transfer-Encoding: chunked\r\n"),
        "both": (
            demo_archive.chunked(gzip.compress(_html(8), mtime=0), 60),
            "text/html",
            "Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n",
        ),
        "image": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3, "image/png", ""),
        "empty": (b"", "text/html", ""),
        "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", ""),
    }
    responses = [
        archives.response(f"http://a.example/{name}", *body[:2], headers=body[2]) for name, body in bodies.items()
    ]
    others = [
        archives.record(None, b"software: a\r\n", kind="warcinfo", content_type="application/warc-fields"),
        archives.record("http://a.example/plain", b"GET / HTTP/1.1\r\n\r\n", kind="request"),
        archives.record(
            "http://r.example/resource.gif", b"GIF89a" + bytes(40), kind="resource", content_type="image/gif"
        ),
        archives.response("http://a.example/gone", b"no", status="404 Not Found"),
    ]
    return (others[0], *responses[:4], *others[1:], *responses[4:])


@cache
def _metadata() -> tuple[bytes, ...]:
    def one(number: int) -> bytes:
        links = [{"path": "IMG@/src", "url": f"i{number}-{i}.png", "alt": f"a &amp; b {i}"} for i in range(3)] + [
            {"path": "A@/href", "url": "/"}
        ]
        response = {"HTML-Metadata": {"Links": links, "Head": {"Base": "/x/"}}, "Response-Message": {"Status": "200"}}
        envelope = {
            "WARC-Header-Metadata": {"WARC-Target-URI": f"http://w.example/{number}"},
            "Payload-Metadata": {"HTTP-Response-Metadata": response},
        }
        return archives.record(
            f"http://w.example/{number}",
            json.dumps({"Envelope": envelope}).encode(),
            kind="metadata",
            content_type="application/json",
        )

    return (archives.record(None, b"x", kind="warcinfo"), *map(one, range(8)))


def _make_archive(parts: Callable[[], tuple[bytes, ...]], suffix: str, rng: Random) -> tuple[bytes, bytes]:
    """Damage inside of one record, its length mended or not, or to the file as it lies on the disk."""
    encode = _ENCODERS[suffix]
    every = list(parts())
    original = b"".join(map(encode, every))
    way = rng.random()
    if way < 0.5:
        at = rng.randrange(len(every))
        broken = mutate(every[at], rng, tokens=_WARC_TOKENS, others=every)
        every[at] = with_content_length(broken) if rng.random() < 0.6 else broken
    mutated = b"".join(map(encode, every))
    if way > 0.45:
        mutated = mutate(mutated, rng, tokens=_WARC_TOKENS, others=(original,))
    return original, mutated


def _make_whole(suffix: str, rng: Random) -> tuple[bytes, bytes]:
    """An archive compressed as one."""
    original = b"".join(_records())
    inner = mutate(original, rng, tokens=_WARC_TOKENS) if rng.random() < 0.5 else original
    outer = _ENCODERS[suffix](inner)
    return _ENCODERS[suffix](original), mutate(outer, rng) if inner is original else outer


def _check_archive(kind: Any, suffix: str, path: Path, original: bytes) -> str:
    settings = InputSettings(kind=kind, paths=["-"])
    found = read_in_two_ways(path, settings)
    if found.error:
        assert not found.error.startswith("UsageError")
        return found.outcome
    data = path.read_bytes()
    every = _all_records(path)
    _check_places(path, found)
    if suffix != "whole":
        _check_intact_records(every, data, path, original)
        _check_coverage(every, data, suffix)
    assert len(found.broken) >= sum(isinstance(each, records.BrokenRecord) for each in every)
    return found.outcome


def _all_records(path: Path) -> list[records.Record | records.BrokenRecord]:
    every = list(records.records(str(path), lambda *_: 1 << 30))
    offsets = [each.offset for each in every if isinstance(each, records.Record) and each.can_be_read_again]
    assert offsets == sorted(set(offsets)), f"records are not in the order of the file: {offsets}"
    return every


def _check_places(path: Path, found: Everything) -> None:
    """An image can be read where it is said to be, and is of that URL."""
    for place in found.places:
        if place["offset"] is None:
            assert place["bytes"] is not None
            continue
        assert read.image_bytes(str(path), place["offset"]) is not None, f"no record at {place['offset']}"
        with path.open("rb") as file:
            record = records.first_record(file, place["offset"], 1 << 20)
        assert record is not None
        assert image_elements.resolve(record.url, None) == place["image_identity"]


@cache
def _spans(suffix: str, original: bytes, folder: str) -> list[tuple[int, int, tuple[Any, ...]]]:
    """Where each record of a sound archive begins and ends, and what it is."""
    path = Path(folder, f"sound{suffix}")
    path.write_bytes(original)
    every = _all_records(path)
    assert all(isinstance(each, records.Record) and each.can_be_read_again for each in every)
    ends = [*(each.offset for each in every[1:]), len(original)][: len(every)]
    return [(each.offset, end, _content(each)) for each, end in zip(every, ends, strict=True)]


def _content(record: records.Record | records.BrokenRecord) -> tuple[Any, ...]:
    return (record.kind, record.url, record.http, record.payload) if isinstance(record, records.Record) else ()


def _check_intact_records(
    every: list[records.Record | records.BrokenRecord], data: bytes, path: Path, original: bytes
) -> None:
    """Records that no damage touched come out, where they are now, as they were."""
    start, end = common_ends(original, data)
    end = min(end, len(data) - start, len(original) - start)
    moved = len(data) - len(original)
    there = {each.offset: _content(each) for each in every}
    is_bare = path.suffix not in (".gz", ".zst")
    swallowed = [
        (each.offset, _end_of(each, data, "")) for each in every if is_bare and isinstance(each, records.Record)
    ]
    for first, last, content in _spans(path.suffix, original, str(path.parent)):
        if last <= start:
            assert there.get(first) == content, f"the record at {first} is before all damage, and is lost or changed"
        # a lie about a length can be a record's whole truth
        elif first >= len(original) - end and not any(a < first + moved < b for a, b in swallowed):
            assert there.get(first + moved) == content, (
                f"the record at {first + moved} is behind all damage, and is lost or changed"
            )


def _check_coverage(every: list[records.Record | records.BrokenRecord], data: bytes, suffix: str) -> None:
    """Between the end of a sound record and the next one there is nothing, or what is there was told: broken, or a
    record in the same member.
    """
    for one, other in pairwise([*every, None]):
        if not _has_own_place(one) or not (other is None or _has_own_place(other)):
            continue
        end = _end_of(one, data, suffix)
        behind = data[end : len(data) if other is None else other.offset]
        assert all(len(line.strip(_BLANK)) < _SHORT_LINE for line in behind.split(b"\n")), (
            f"{len(behind)} bytes from {end} on are in no record: {behind[:60]!r}"
        )


def _has_own_place(record: records.Record | records.BrokenRecord) -> TypeGuard[records.Record]:
    return isinstance(record, records.Record) and record.can_be_read_again


def _end_of(record: records.Record, data: bytes, suffix: str) -> int:
    match suffix:
        case "":
            head = _HEAD_END.search(data, record.offset)
            return head.end() + record.block_bytes if head else len(data)
        case ".gz":
            inflater = zlib.decompressobj(31)
            try:
                inflater.decompress(data[record.offset :])
            except zlib.error:
                return len(data)
            return len(data) - len(inflater.unused_data)
    return len(data)


# Tars -----------------------------------------------------------------------------------------------------------------


@cache
def _tars() -> tuple[bytes, ...]:
    members: list[tuple[str, bytes]] = []
    for number in range(6):
        name = f"{'long/' * 30 if number == 3 else ''}00{number}"
        members += [
            (f"{name}.jpg", b"\xff\xd8\xff" + bytes([number]) * (700 * number)),
            (f"{name}.txt", f"a caption, № {number}".encode()),
            (f"{name}.json", json.dumps({"url": f"http://t.example/{number}.jpg", "caption": "c"}).encode()),
        ]
    return tuple(_tar(members, form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))


def _tar(members: list[tuple[str, bytes]], form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.pax_headers = {"comment": "ü"} if form == tarfile.PAX_FORMAT else {}
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def _make_tar(suffix: str, rng: Random) -> tuple[bytes, bytes]:
    encode, tars = _ENCODERS[suffix], _tars()
    original = rng.choice(tars)
    inner = mutate(original, rng, tokens=_TAR_TOKENS, others=tars) if not suffix or rng.random() < 0.6 else original
    if rng.random() < 0.4:
        inner = _with_tar_checksums(inner)
    outer = encode(inner)
    return encode(original), mutate(outer, rng) if suffix and inner is original else outer


def _with_tar_checksums(data: bytes) -> bytes:
    """Headers at multiples of 512 with the sums of what they hold now."""
    blocks = [data[at : at + 512] for at in range(0, len(data), 512)]
    for number, block in enumerate(blocks):
        if block[257:262] == b"ustar":
            total = sum(block[:148]) + 8 * 32 + sum(block[156:])
            blocks[number] = block[:148] + b"%06o\0 " % total + block[156:]
    return b"".join(blocks)


def _check_tar(suffix: str, path: Path, _original: bytes) -> str:
    found = read_in_two_ways(path, InputSettings(kind="webdataset", paths=["-"]))
    if found.error or not path.stat().st_size:
        return found.outcome
    data = path.read_bytes()
    for place in found.places:
        if place["offset"] is not None:
            assert len(data[place["offset"] : place["offset"] + place["length"]]) == place["length"] > 0, (
                "an image has a place and cannot be read there"
            )
        else:
            assert place["bytes"]
    if not suffix and data[:2] not in (b"\x1f\x8b", b"\x28\xb5"):
        _check_members(data, found)
    return found.outcome


def _check_members(data: bytes, found: Everything) -> None:
    """Every sample is a row or broken; where a tar has ended, and no other begins, there is nothing or it was told."""
    end = next((entry["offset"] for entry in found.broken if "behind the end" in entry["error"]), len(data))
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", ignore_zeros=True) as tar:
            members = [(member.offset, member.name) for member in tar if member.isfile() and member.offset < end]
            behind = data[tar.offset : end].strip(b"\0")
    except tarfile.ReadError:  # zeros, and then no member
        assert found.broken
        return
    assert not behind, f"{len(behind)} bytes behind the tar's last member are in no member"
    samples, told = (
        sum(1 for _ in _samples([name for _, name in members])),
        len(found.rows) + sum(entry["offset"] < end for entry in found.broken),
    )
    assert samples == told, f"{samples} samples, but {len(found.rows)} rows and {len(found.broken)} broken"


def _samples(names: list[str]) -> Iterator[str]:
    for sample, members in groupby(
        names, key=lambda name: (name.rpartition("/")[0], name.rpartition("/")[2].partition(".")[0])
    ):
        if list(members):
            yield "/".join(sample)


TARGETS = {
    **{
        f"warc{suffix}": Target(
            f".warc{suffix}", partial(_make_archive, _records, suffix), partial(_check_archive, "warc", suffix)
        )
        for suffix in _ENCODERS
    },
    **{
        f"warc.whole{suffix}": Target(
            f".warc{suffix}", partial(_make_whole, suffix), partial(_check_archive, "warc", "whole")
        )
        for suffix in (".gz", ".zst")
    },
    "wat": Target(".wat.gz", partial(_make_archive, _metadata, ".gz"), partial(_check_archive, "wat", ".gz")),
    **{
        f"tar{suffix}": Target(f".tar{suffix}", partial(_make_tar, suffix), partial(_check_tar, suffix))
        for suffix in _ENCODERS
    },
}

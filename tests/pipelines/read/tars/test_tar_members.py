"""Headers and members of tars against tarfile, which reads every header the slow way."""

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from altalign.pipelines.read.tars import tar_members
from tests.pipelines.read.pages.archives import compress

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
NUMBERS = {
    "mode": (100, 8),
    "owner": (108, 8),
    "group": (116, 8),
    "size": (124, 12),
    "time": (136, 12),
    "sum": (148, 8),
    "major": (329, 8),
    "minor": (337, 8),
}
FIELDS = (
    b"",
    b"0",
    b" 17",
    b"17 ",
    b"7\0 7",
    b"0o17",
    b"1_7",
    b"+7",
    b"-7",
    b"8",
    b"x",
    b"\xff" * 12,
    b"\x80\0\0\0\0\0\0\1",
    b"\x80" + b"\0" * 10 + b"\x09",
    b" ",
)
TYPES = b"0\x001234567LKxgXSVDAN\xff"


def header(rng: Random) -> bytes:
    """A header as a tool may write it, or with something in it that none would; its sum right, as that of signed bytes, or wrong."""
    name = rng.choice(
        ["a.jpg", "folder/", "folder/of/a.txt", "n" * 100, "ü.json", "\udcff.png", "f" * 80 + "/" + "g" * 60, ""]
    )
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.uid = (
        rng.choice([0, 1, 512, 8**11 - 1]),
        rng.choice([0, 1_700_000_000]),
        rng.choice([0, 1000]),
    )
    member.type = bytes([rng.choice(TYPES)]) if rng.random() < 0.3 else tarfile.REGTYPE
    block = bytearray(member.tobuf(tarfile.USTAR_FORMAT)[:512])
    for begin, length in NUMBERS.values():
        if rng.random() < 0.15:
            block[begin : begin + length] = (
                rng.choice([b"\0", b" "])
                .join([rng.choice(FIELDS), b""])
                .ljust(length, rng.choice([b"\0", b" "]))[:length]
            )
    if rng.random() < 0.1:
        block[rng.randrange(512)] = rng.randrange(256)
    sums = tarfile.calc_chksums(bytes(block))  # type: ignore[attr-defined]
    if rng.random() < 0.9:
        block[148:156] = (
            rng.choice([b"%06o\0 ", b"%06o \0", b"%07o\0", b"%6o\0 ", b"0%06o ", b"%06o 1"]) % sums[rng.random() < 0.1]
        )
    return bytes(block)


def understood(kind: Any, block: bytes) -> tuple[Any, ...]:
    """Name, size and type of a header, or the error it is."""
    try:
        found = kind.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError as error:
        return type(error).__name__, str(error)
    return found.name, found.size, found.type


def is_too_long(found: tuple[Any, ...]) -> bool:
    return len(found) == 3 and found[2] in tar_members._LONG_HEADERS and not 0 <= found[1] <= tar_members.LINE_BYTES


def test_a_header_is_understood_as_tarfile_understands_it() -> None:
    rng, plain, kinds = Random(3), 0, set[str]()
    for _ in range(8_000):
        block = header(rng)
        wanted, found = understood(tarfile.TarInfo, block), understood(tar_members._Header, block)
        assert found == (("ReadError", f"header of {wanted[1]} bytes") if is_too_long(wanted) else wanted)
        plain += tar_members._Header._plain(block, "utf-8", "surrogateescape") is not None
        kinds.add(wanted[0] if len(wanted) == 2 else "")
    assert plain > 1_500  # both ways are taken often
    assert kinds == {"", "InvalidHeaderError"}


@pytest.mark.parametrize("length", [0, 1, 511, 513])
def test_a_header_of_another_length_is_no_plain_one(length: int) -> None:
    block = tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT)[:512].ljust(length, b"\0")[:length]
    assert understood(tar_members._Header, block) == understood(tarfile.TarInfo, block)


def test_every_byte_of_a_header_is_in_its_sum() -> None:
    member = tarfile.TarInfo("\xff" * 49)  # sums of halves that are as large as can be
    block = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
    block[157:329], block[345:512] = b"\xff" * 172, b"\xff" * 167
    block[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(block))[0]  # type: ignore[attr-defined]
    assert tar_members._Header._plain(bytes(block), "utf-8", "surrogateescape") is not None
    for at in set(range(512)) - set(range(148, 156)):
        other = bytearray(block)
        other[at] ^= 1
        assert tar_members._Header._plain(bytes(other), "utf-8", "surrogateescape") is None, at


def tar(rng: Random, members: int) -> bytes:
    """A tar of members of all kinds and sizes, of one format each."""
    parts = []
    for number in range(members):
        form = rng.choice(FORMATS)
        depth = rng.randint(1, 28 if form == tarfile.USTAR_FORMAT else 60)
        kind = rng.choice(
            [tarfile.REGTYPE] * 8 + [tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE]
        )
        # an older header with a long name that it cuts at a slash is a folder to tarfile
        is_short = kind == tarfile.AREGTYPE or rng.random() < 0.5
        name = ("" if is_short else "deep/" * depth) + f"{number}.{rng.choice(['jpg', 'txt', 'json', 'ü'])}"
        member = tarfile.TarInfo(name)
        member.type = kind
        content = rng.randbytes(rng.choice([0, 1, 100, 511, 512, 513, 9_000, 70_000])) if member.isreg() else b""
        member.size, member.linkname = len(content), "" if member.isreg() else "somewhere"
        if form == tarfile.PAX_FORMAT and rng.random() < 0.3:
            member.pax_headers = {"comment": "a" * rng.randint(1, 2_000)}
        parts.append(member.tobuf(form) + content + bytes(-len(content) % 512))
        if rng.random() < 0.03:
            parts.append(bytes(512 * rng.randint(1, 20)))  # an end, and more behind it
    return b"".join(parts) + bytes(1_024)


def members(opened: tarfile.TarFile, *, with_content: bool) -> Iterator[tuple[Any, ...]]:
    for member in opened:
        content = None
        if member.isreg():
            if with_content:
                content = tar_members.content(opened, member, member.size)
            else:
                file = opened.extractfile(member)
                content = file.read() if file else None
        yield member.name, member.size, member.type, member.offset, member.offset_data, content


@pytest.mark.parametrize("form", [".tar", ".tar.gz", ".tar.zst"])
@pytest.mark.parametrize("seed", range(6))
def test_all_members_of_a_tar_are_those_that_tarfile_finds(tmp_path: Path, form: str, seed: int) -> None:
    data = tar(random.Random(seed), 150)
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as plain:
        wanted = list(members(plain, with_content=False))
    with compress(tmp_path / f"a{form}", data).open("rb") as file, tar_members.opened(file) as (opened, is_compressed):
        assert is_compressed == (form != ".tar")
        found = list(members(opened, with_content=True))
    assert found == wanted
    assert len(found) == 150


def test_headers_without_surprises_are_not_left_to_tarfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []
    real = tarfile.TarInfo.frombuf.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        tarfile.TarInfo, "frombuf", classmethod(lambda cls, buf, *rest: left.append(buf) or real(cls, buf, *rest))
    )
    data = b"".join(tarfile.TarInfo(f"{number}.jpg").tobuf(form) for number, form in enumerate(FORMATS * 20)) + bytes(
        1_024
    )
    (tmp_path / "a.tar").write_bytes(data)
    with (tmp_path / "a.tar").open("rb") as file, tar_members.opened(file) as (opened, _):
        assert len(list(opened)) == 60
    assert left
    assert all(not block.strip(b"\0") for block in left)  # the zeros that end it


def test_the_file_may_be_read_elsewhere_meanwhile(tmp_path: Path) -> None:
    data = tar(random.Random(9), 40)
    (tmp_path / "a.tar").write_bytes(data)
    with tarfile.open(fileobj=io.BytesIO(data), ignore_zeros=True) as plain:
        wanted = [member.name for member in plain]
    found = []
    with (tmp_path / "a.tar").open("rb") as file, tar_members.opened(file) as (opened, _):
        for member in opened:
            found.append(member.name)
            file.seek(len(data) // 2)
            file.read(10)
    assert found == wanted


@pytest.mark.parametrize("form", [".tar", ".tar.gz"])
def test_content_of_a_tar_that_is_cut_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(tar_members, "PIECE_BYTES", 1_000)
    member = tarfile.TarInfo("a.txt")
    member.size = 2_500
    for there in (0, 400, 1_000, 2_499):
        path = compress(tmp_path / f"a{form}", member.tobuf() + b"x" * there)
        with path.open("rb") as file, tar_members.opened(file) as (opened, _):
            first = opened.next()
            assert first is not None
            assert tar_members.content(opened, first, min(there, 300)) == b"x" * min(there, 300)
            if form == ".tar":
                with pytest.raises(tarfile.ReadError, match="unexpected end of data"):
                    tar_members.content(opened, first, 2_500)
        with path.open("rb") as file, tar_members.opened(file) as (opened, _):
            first = opened.next()
            assert first is not None
            with pytest.raises(tarfile.ReadError, match="unexpected end of data"):
                tar_members.content(opened, first, 2_500)

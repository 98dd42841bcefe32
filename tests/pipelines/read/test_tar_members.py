"""Members of tars against plain tarfile: in files that are read elsewhere meanwhile, compressed, or cut."""

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from altalign.pipelines.read import tar_members
from tests.support.archives import compress

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


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
    monkeypatch.setattr(tar_members, "_PIECE_BYTES", 1_000)
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

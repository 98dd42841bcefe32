"""Tars of test sets: what leads to images, or may hold some, is not passed over in silence."""

import io
import tarfile
from pathlib import Path
from typing import Literal

import pytest

from altalign.errors import UnreadableError
from tests.pipelines.read.test_test_sets import PNG, found, tar


@pytest.mark.parametrize("name", ["more.tar", "more.TGZ", "more.zip", "more.parquet", "more.lmdb"])
def test_what_may_hold_images_in_a_tar_is_not_passed_over(tmp_path: Path, name: str) -> None:
    tar(tmp_path / "a.tar", [("0.png", PNG), (name, b"whatever")])
    with pytest.raises(UnreadableError, match=rf"a\.tar: {name}: images in it would not be looked for; unpack it"):
        found(tmp_path)


@pytest.mark.parametrize("compression", ["w", "w:gz"])
@pytest.mark.parametrize(
    ("kind", "name", "target", "is_met"),
    [
        (tarfile.SYMTYPE, "deep/b.png", "../a.png", True),
        (tarfile.LNKTYPE, "deep/b.png", "a.png", True),
        (tarfile.LNKTYPE, "deep/b.png", "./a.png", True),
        (tarfile.SYMTYPE, "b.JPEG", "../blobs/4711", False),
        (tarfile.SYMTYPE, "deep/b.png", "a.png", False),
        (tarfile.SYMTYPE, "b.png", "/data/a.png", False),
        (tarfile.LNKTYPE, "b.png", ".cache/a.png", False),
        (tarfile.SYMTYPE, ".b.png", "nowhere", True),
        (tarfile.SYMTYPE, "latest", "nowhere", True),
    ],
)
def test_a_link_in_a_tar_is_to_an_image_of_it_or_is_named(
    tmp_path: Path, compression: Literal["w", "w:gz"], kind: bytes, name: str, target: str, *, is_met: bool
) -> None:
    with tarfile.open(tmp_path / "a.tar", compression) as archive:
        for image in (".cache/a.png", "a.png"):
            header = tarfile.TarInfo(image)
            header.size = len(PNG)
            archive.addfile(header, io.BytesIO(PNG))
        link = tarfile.TarInfo(name)
        link.type, link.linkname = kind, target
        archive.addfile(link)
    if is_met:
        assert found(tmp_path) == [("a.tar/a.png", PNG)]
        return
    with pytest.raises(
        UnreadableError,
        match=rf"a\.tar: {name}: a link to what is no image of this tar; make it anew with --dereference",
    ):
        found(tmp_path)

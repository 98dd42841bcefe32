"""Block lists of SHA-256, MD5 and PDQ: what a line may be, what is refused, and what is found."""

import hashlib
import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from altalign.errors import UsageError
from altalign.filters import blocked
from altalign.filters.blocked import PDQ_DISTANCE_AT_MOST, BlockList, pdq
from altalign.filters.pixels import decode
from altalign.pipelines.images.measuring import load_block_lists

DATA = b"the bytes as found"
SHA256 = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA).hexdigest()


def asked(block_list: BlockList, data: bytes, pixels: np.ndarray | None = None) -> bool | None:
    return block_list.blocks(data=data, found_sha256=hashlib.sha256(data).hexdigest(), pixels=pixels)


def photograph(seed: int, width: int = 900, height: int = 700) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 15, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def gray_pixels(image: Image.Image, kind: str, short_side_px: int, **options: object) -> np.ndarray:
    file = io.BytesIO()
    image.save(file, kind, **options)
    pixels = decode(file.getvalue(), pixels_at_most=10**9, colour=False, short_side_px=short_side_px).pixels
    assert pixels is not None
    return pixels


def pdq_line(pixels: np.ndarray) -> str:
    return "pdq:" + pdq(pixels)[0].astype(">u8").tobytes().hex()


def test_hashes_of_bytes_are_told_by_their_length() -> None:
    text = f"# ours\n\n{SHA256.upper()}   # in capitals\n{'0' * 32}\nmd5:{'1' * 32}\nsha256: {'2' * 64}\r\n{'3' * 40}"
    block_list = BlockList.parse([("list", text)])
    assert block_list.digests["sha256"] == {SHA256, "2" * 64}
    assert block_list.digests["md5"] == {"0" * 32, "1" * 32}
    assert block_list.digests["sha1"] == {"3" * 40}
    assert len(block_list) == 5
    assert asked(block_list, DATA) is True
    assert asked(block_list, b"another") is False


@pytest.mark.parametrize("kind", ["sha256", "sha1", "md5"])
def test_each_hash_of_bytes_is_found(kind: str) -> None:
    digits = hashlib.new(kind, DATA).hexdigest()
    for line in (digits, digits.upper(), f"{kind}:{digits}"):
        block_list = BlockList.parse([("list", line)])
        assert asked(block_list, DATA) is True
        assert (block_list.names(DATA), block_list.names(b"another")) == (True, False)


def test_a_list_of_urls_has_no_hashes_of_pixels() -> None:
    assert BlockList.parse([("list", SHA256)], of_urls=True).names(DATA)
    with pytest.raises(UsageError, match=r"urls\.txt line 2: 'pdq:0.* is no hash; write .* or 32 \(MD5\)$"):
        BlockList.parse([("urls.txt", f"{MD5}\npdq:{'0' * 64}\n")], of_urls=True)


def test_no_lists_block_nothing() -> None:
    assert len(BlockList.parse([])) == 0
    assert asked(BlockList(), DATA) is False
    assert BlockList().short_side_px == 0


@pytest.mark.parametrize(
    "line",
    [
        "0" * 63,
        "g" * 64,
        "sha1:" + "0" * 39,
        "0" * 41,
        "pdq:" + "0" * 32,
        "md5:" + "0" * 64,
        "pdq:",
        "0" * 64 + ",57",
        "hash",
    ],
)
def test_a_line_that_is_no_hash_is_named(line: str) -> None:
    with pytest.raises(UsageError, match=r"bad\.txt line 2: .*64 hex digits \(SHA-256\)"):
        BlockList.parse([("good.txt", SHA256), ("bad.txt", f"# first\n{line}\n")])


def test_files_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(SHA256)
    (tmp_path / "b").write_text(f"{MD5}\n")
    assert len(load_block_lists([str(tmp_path / "a"), str(tmp_path / "b")])) == 2
    with pytest.raises(UsageError, match="nowhere"):
        load_block_lists([str(tmp_path / "nowhere")])
    with pytest.raises(UsageError, match="directory"):
        load_block_lists([str(tmp_path)])
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not text"):
        load_block_lists([str(tmp_path / "binary")])


def test_pdq_hashes_without_their_package_stop_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "list").write_text("pdq:" + "0" * 64)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"`make setup EXTRAS=pdq` brings"):
        load_block_lists([str(tmp_path / "list")])


def test_a_re_encoded_image_is_found_by_its_pdq_hash_and_others_are_not() -> None:
    pytest.importorskip("pdqhash", reason="PDQ needs the extra pdq")
    source = photograph(1)
    block_list = BlockList.parse([("list", pdq_line(np.asarray(source)))])
    side = block_list.short_side_px
    assert asked(block_list, b"", gray_pixels(source, "JPEG", side, quality=60)) is True
    assert asked(block_list, b"", gray_pixels(source.resize((600, 467)), "WEBP", side)) is True
    assert asked(block_list, b"", np.asarray(source)) is True
    for seed in range(2, 8):
        assert asked(block_list, b"", gray_pixels(photograph(seed), "JPEG", side)) is False


def test_without_pixels_a_pdq_list_cannot_be_asked() -> None:
    block_list = BlockList.parse([("list", f"pdq:{'0' * 64}\n{SHA256}")])
    assert asked(block_list, b"another") is None
    assert asked(block_list, DATA) is True


def test_flat_images_have_no_pdq_hash_to_speak_of() -> None:
    pytest.importorskip("pdqhash", reason="PDQ needs the extra pdq")
    flat = np.full((300, 300), 120, np.uint8)
    assert asked(BlockList.parse([("list", pdq_line(flat))]), b"", flat) is False


def test_the_distance_of_31_is_found_and_32_is_not() -> None:
    pytest.importorskip("pdqhash", reason="PDQ needs the extra pdq")
    pixels = np.asarray(photograph(3))
    bits = np.unpackbits(pdq(pixels)[0].astype(">u8").view(np.uint8))
    for flipped, expected in ((PDQ_DISTANCE_AT_MOST, True), (PDQ_DISTANCE_AT_MOST + 1, False)):
        other = bits.copy()
        other[np.random.default_rng(0).choice(256, flipped, replace=False)] ^= 1
        assert asked(BlockList.parse([("list", "pdq:" + np.packbits(other).tobytes().hex())]), b"", pixels) is expected


def test_the_hex_form_is_that_of_the_reference() -> None:
    pdqhash = pytest.importorskip("pdqhash", reason="PDQ needs the extra pdq")
    pixels = np.asarray(photograph(4))
    bits, _ = pdqhash.compute(pixels)
    assert pdq_line(pixels) == f"pdq:{int(''.join(map(str, bits)), 2):064x}"
    assert blocked.PDQ_QUALITY_AT_LEAST == 50

"""Every format as Pillow writes it, cut and overwritten, hostile headers, odd colour spaces, orientations, and what a
shard stores.
"""

import io
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from altalign.filters import pixels
from altalign.filters.image_headers import ROW_AT_MOST_PX, sniff
from altalign.filters.pixels import decode, gray, to_stored
from tests.shared_data import SHARED, needs_shared
from tests.support.pictures import FORMATS, chunk, encoded, one_bit_png, picture

LIMIT = 178_956_970
ORIENTATION = 0x0112


def read(data: bytes, *, colour: bool = False, pixels_at_most: int = LIMIT, short_side_px: int = 128) -> pixels.Decoded:
    return decode(data, pixels_at_most=pixels_at_most, colour=colour, short_side_px=short_side_px)


def reduced(array: np.ndarray) -> np.ndarray:
    """16 x 16 means of gray: what survives any scaling."""
    return np.asarray(Image.fromarray(array).convert("L").resize((16, 16), Image.Resampling.BOX)).astype(int)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_sound_image_has_its_format_size_and_pixels(kind: str, mode: str) -> None:
    source = picture()
    found = read(encoded(source, kind), colour=mode == "RGB")
    assert (found.format, found.width, found.height, found.damage, found.orientation) == (kind, 320, 240, None, 1)
    assert found.pixels is not None
    assert found.pixels.dtype == np.uint8
    assert found.pixels.ndim == (3 if mode == "RGB" else 2)
    assert min(found.pixels.shape[:2]) >= 128
    assert np.abs(reduced(found.pixels) - reduced(np.asarray(source))).max() <= (25 if kind == "gif" else 6)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("width", "height"), [(1, 1), (3, 700), (90, 40), (129, 131), (1000, 300)])
def test_an_image_is_scaled_down_to_no_less_than_asked_and_never_up(kind: str, width: int, height: int) -> None:
    found = read(encoded(picture(width, height), kind)).pixels
    assert found is not None
    assert min(width, height, 128) <= min(found.shape) <= min(width, height)
    assert max(found.shape) <= max(width, height)


def test_a_large_image_is_scaled_down() -> None:
    for kind in ("jpeg", "png"):
        found = read(encoded(picture(1280, 1024), kind)).pixels
        assert found is not None
        assert found.shape == (128, 160)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"<!DOCTYPE html><p>404",
        b"BMW drives past, said the page that answered instead of an image",
        b"RIFF\0\0\0\0WAVEfmt ",
        b"\0\0\0\x18ftypisom\0\0avifisom",  # "avif" stands where the minor version is
        b"GIF88a",
    ],
)
def test_what_is_no_known_format_is_undecodable(data: bytes) -> None:
    found = read(data)
    assert (found.format, found.width, found.height, found.pixels) == (None, None, None, None)


# A PNG without the last bytes of IEND and a GIF without its trailer are whole: their last pixel is there.
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("cut", ["half", "hundredth", "two bytes"])
def test_a_cut_image_is_damaged(kind: str, cut: str) -> None:
    data = encoded(picture(), kind)
    keep = {"half": len(data) // 2, "hundredth": len(data) * 99 // 100, "two bytes": len(data) - 2}[cut]
    found = read(data[:keep])
    assert found.format == kind
    if (kind, cut) in {("png", "two bytes"), ("gif", "two bytes")}:
        assert found.pixels is not None
    else:
        assert found.damage
        assert found.pixels is None


def test_a_cut_progressive_jpeg_is_damaged_and_keeps_its_size() -> None:
    data = encoded(picture(), "jpeg", progressive=True)
    for keep in (len(data) // 2, len(data) * 99 // 100, len(data) - 2):
        found = read(data[:keep])
        assert (found.width, found.height) == (320, 240)
        assert "premature end" in (found.damage or "").lower()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_header_cut_short_is_damage_of_a_known_format(kind: str) -> None:
    found = read(encoded(picture(), kind)[:33])
    assert found.format == kind
    assert found.damage
    assert found.pixels is None


@pytest.mark.parametrize("kind", FORMATS)
def test_overwritten_bytes_never_raise(kind: str) -> None:
    data = encoded(picture(), kind)
    rng = np.random.default_rng(7)
    for _ in range(60):
        broken = bytearray(data)
        for at in rng.integers(12, len(data) if rng.random() < 0.5 else 600, 12):
            broken[at] = rng.integers(0, 256)
        found = read(bytes(broken), pixels_at_most=2_000_000, colour=bool(rng.integers(2)))
        assert found.pixels is None or found.damage is None


def test_most_overwritten_jpegs_are_noticed() -> None:
    noticed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        data = bytearray(encoded(picture(), "jpeg", quality=95, progressive=bool(seed % 2)))
        for at in rng.integers(700, len(data), 200):
            data[at] = rng.integers(0, 256)
        noticed += read(bytes(data)).damage is not None
    assert noticed >= 18


@given(
    head=st.sampled_from([encoded(picture(40, 30), kind)[:size] for kind in FORMATS for size in (12, 30, 90)]),
    tail=st.binary(max_size=300),
)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_any_bytes_behind_a_known_beginning_never_raise(head: bytes, tail: bytes) -> None:
    found = read(head + tail, pixels_at_most=2_000_000)
    assert found.pixels is None or found.damage is None


def test_junk_between_markers_and_behind_the_end_of_a_jpeg_is_harmless() -> None:
    data = encoded(picture(), "jpeg")
    scan = data.rindex(b"\xff\xda")
    whole = read(data).pixels
    for harmless in (data + b"\0\x01\x02 more", data[:scan] + b"\x01\x02\x03" + data[scan:]):
        found = read(harmless)
        assert found.damage is None
        assert found.pixels is not None
        assert whole is not None
        assert np.abs(reduced(found.pixels) - reduced(whole)).max() <= 2
    with pytest.raises(ValueError, match="extraneous"):
        simplejpeg.decode_jpeg(data[:scan] + b"\x01\x02\x03" + data[scan:])


def test_a_harmless_remark_does_not_hide_that_a_jpeg_is_cut() -> None:
    data = encoded(picture(), "jpeg")
    scan = data.rindex(b"\xff\xda")
    assert read((data[:scan] + b"\x01\x02\x03" + data[scan:])[:-200]).damage


def test_a_bomb_is_not_decoded_but_measured() -> None:
    found = read(one_bit_png(50_000, 50_000))
    assert (found.format, found.width, found.height, found.damage, found.pixels) == ("png", 50_000, 50_000, None, None)


def test_the_limit_of_pixels_is_inclusive() -> None:
    for kind in FORMATS:
        data = encoded(picture(40, 30), kind)
        assert read(data, pixels_at_most=1200).pixels is not None
        assert read(data, pixels_at_most=1199).pixels is None
        assert read(data, pixels_at_most=1199).damage is None


def test_an_image_above_pillows_own_limits_is_decoded_where_the_setting_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in FORMATS:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        assert read(encoded(picture(40, 30), kind)).pixels is not None


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "LARGE_PIXELS", 100)
    data = encoded(picture(), "png")
    with ThreadPoolExecutor(4) as threads:
        assert all(found.pixels is not None for found in threads.map(read, [data] * 16))


def test_a_large_image_becomes_an_array_before_the_next_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "LARGE_PIXELS", 100)
    is_alone = []

    class Upright:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            is_alone.append(pixels._LARGE.locked())  # pyright: ignore[reportPrivateUsage]
            return np.zeros((40, 30), np.uint8)

    monkeypatch.setattr(pixels, "_upright", lambda *_, **__: Upright())
    assert read(encoded(picture(), "png")).pixels is not None
    assert is_alone == [True]


def test_warnings_are_put_back_and_truncated_files_refused_whatever_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    before = list(warnings.filters)
    data = [encoded(picture(), kind) for kind in FORMATS] + [encoded(picture(), "png")[:900]]
    start = threading.Barrier(4)

    def work(_: int) -> list[str | None]:
        start.wait()
        return [read(each).damage for each in data]

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(work, range(4)))
    assert all(outcome[:-1] == [None] * len(FORMATS) for outcome in outcomes)
    assert all(outcome[-1] for outcome in outcomes)  # LOAD_TRUNCATED_IMAGES would have let it pass
    assert warnings.filters == before


def test_a_decoders_warning_does_not_change_the_verdict() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01"  # five entries announced, one begun
    data = encoded(picture(), "jpeg", exif=exif)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(data).pixels is not None


def test_a_cmyk_jpeg_looks_like_its_rgb_twin() -> None:
    source = picture()
    found = read(encoded(source.convert("CMYK"), "jpeg", quality=95), colour=True)
    assert found.pixels is not None
    assert np.abs(reduced(found.pixels) - reduced(np.asarray(source))).max() <= 6
    assert read(encoded(source.convert("CMYK"), "jpeg")).pixels is not None


def test_a_gray_jpeg_becomes_rgb_where_colour_is_asked_for() -> None:
    found = read(encoded(picture().convert("L"), "jpeg"), colour=True).pixels
    assert found is not None
    assert found.shape[2] == 3
    assert np.ptp(found, axis=2).max() == 0


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_gray_of_16_bits_keeps_its_upper_8(kind: str) -> None:
    ramp = np.tile(np.linspace(0, 65535, 320).astype(np.uint16), (240, 1))
    found = read(encoded(Image.fromarray(ramp), kind), short_side_px=240).pixels
    assert found is not None
    assert np.array_equal(found, (ramp >> 8).astype(np.uint8))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_gray_of_32_bits_goes_from_its_least_to_its_greatest(dtype: type) -> None:
    ramp = np.tile(np.linspace(-1000, 5000, 200).astype(dtype), (150, 1))
    if dtype is np.float32:
        ramp[0, :2] = (np.nan, np.inf)
    found = read(encoded(Image.fromarray(ramp), "tiff")).pixels
    assert found is not None
    assert (found[50, 0], found[50, -1]) == (0, 255)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_transparency_is_on_white(mode: str) -> None:
    clear = Image.new("RGBA", (200, 150), (255, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (0, 0, 100, 150))
    palette = Image.new("P", (200, 150), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    palette.paste(0, (0, 0, 100, 150))
    gray_alpha = clear.convert("LA")
    data = [encoded(clear, kind) for kind in ("png", "webp", "avif", "tiff")]
    data += [
        encoded(palette, "png", transparency=1),
        encoded(palette, "png", transparency=b"\xff\0"),
        encoded(palette, "gif", transparency=1),
    ]
    data += [encoded(gray_alpha, "png"), encoded(clear.convert("RGB"), "png", transparency=(255, 0, 0))]
    for each in data:
        found = read(each, colour=mode == "RGB").pixels
        assert found is not None
        assert found[:, 150:].min() >= 250
        assert found[:, :50].max() <= 5


@pytest.mark.parametrize("kind", ["gif", "webp", "avif", "tiff", "png"])
def test_only_the_first_frame_counts(kind: str) -> None:
    first, second = Image.new("RGB", (160, 140), "black"), Image.new("RGB", (160, 140), "white")
    found = read(encoded(first, kind, save_all=True, append_images=[second, second])).pixels
    assert found is not None
    assert found.max() <= 2


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "avif", "tiff"])
@pytest.mark.parametrize("orientation", range(10))
def test_orientation_is_applied_to_the_pixels_and_not_to_the_size(kind: str, orientation: int) -> None:
    upright = picture(300, 200)
    transpose = Image.Transpose
    stored = {
        2: transpose.FLIP_LEFT_RIGHT,
        3: transpose.ROTATE_180,
        4: transpose.FLIP_TOP_BOTTOM,
        5: transpose.TRANSPOSE,
        6: transpose.ROTATE_90,
        7: transpose.TRANSVERSE,
        8: transpose.ROTATE_270,
    }
    image = upright.transpose(stored[orientation]) if orientation in stored else upright
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(image, kind, exif=exif)
    if kind == "avif" and orientation in (0, 9):
        return  # Pillow writes orientation into AVIF's own boxes, which have no such values
    found = read(data)
    assert (found.width, found.height) == image.size
    assert found.orientation == (orientation if 1 <= orientation <= 8 else 1)
    assert found.pixels is not None
    assert found.pixels.shape[0] * 3 == pytest.approx(found.pixels.shape[1] * 2, abs=3)
    assert found.pixels.flags.c_contiguous
    assert np.abs(reduced(found.pixels) - reduced(np.asarray(upright))).max() <= 6
    smaller = to_stored(data, portable=True, resize_short_side_px=100)
    assert (smaller.format, smaller.width, smaller.height) == ("jpeg", 150, 100)
    assert np.abs(reduced(np.asarray(Image.open(io.BytesIO(smaller.bytes)))) - reduced(np.asarray(upright))).max() <= 6


def test_gray_is_the_luma() -> None:
    colour = np.asarray(picture())
    assert np.array_equal(gray(colour), np.asarray(picture().convert("L")))
    assert gray(gray(colour)) is not None
    assert gray(colour[:, :, 0]).shape == (240, 320)


@pytest.mark.parametrize("kind", FORMATS)
def test_portable_makes_every_image_a_jpeg(kind: str) -> None:
    data = encoded(picture(), kind)
    first, second = (to_stored(data, portable=True, resize_short_side_px=0) for _ in range(2))
    assert first == second
    assert (first.format, first.width, first.height) == ("jpeg", 320, 240)
    assert sniff(first.bytes) == "jpeg"
    assert (first.bytes == data) is (kind == "jpeg")
    again = Image.open(io.BytesIO(first.bytes))
    assert again.size == (320, 240)
    assert not again.getexif()
    assert "icc_profile" not in again.info


@pytest.mark.parametrize("kind", FORMATS)
def test_bytes_stay_where_they_need_not_change(kind: str) -> None:
    data = encoded(picture(), kind)
    if kind == "heic":
        return  # always written anew, as `test_heic.py` has it
    for resize in (0, 240, 1000):
        kept = to_stored(data, portable=False, resize_short_side_px=resize)
        assert (kept.bytes, kept.format, kept.width, kept.height) == (data, kind, 320, 240)
    assert to_stored(data, portable=False, resize_short_side_px=100).format == "jpeg"


@pytest.mark.parametrize("kind", FORMATS)
def test_resizing_gives_the_short_side_asked_for(kind: str) -> None:
    source = picture(640, 427)
    shrunk = to_stored(encoded(source, kind), portable=True, resize_short_side_px=150)
    assert (shrunk.width, shrunk.height) == (225, 150)  # 640 * 150 / 427 = 224.8
    image = Image.open(io.BytesIO(shrunk.bytes))
    assert image.size == (225, 150)
    assert np.abs(reduced(np.asarray(image)) - reduced(np.asarray(source))).max() <= (25 if kind == "gif" else 6)


def test_what_is_too_long_for_a_jpeg_is_made_to_fit() -> None:
    stored = to_stored(encoded(Image.new("L", (70_000, 140)), "png"), portable=True, resize_short_side_px=0)
    assert (stored.width, stored.height) == (65_500, 131)
    assert Image.open(io.BytesIO(stored.bytes)).size == (65_500, 131)


def test_storing_a_damaged_image_is_refused() -> None:
    for data in (b"<html>", encoded(picture(), "png")[:500], encoded(picture(), "avif")[:60]):
        with pytest.raises(ValueError, match=r"\w"):
            to_stored(data, portable=True, resize_short_side_px=0)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("portable", [True, False])
def test_bytes_that_stay_as_found_are_known_before_they_are_decoded(kind: str, *, portable: bool) -> None:
    data = encoded(picture(64, 48), kind)
    for resize in (0, 1, 47, 48, 49, 100):
        stays = pixels.is_stored_as_found(data, kind, 64, 48, portable=portable, resize_short_side_px=resize)
        stored = to_stored(data, portable=portable, resize_short_side_px=resize)
        assert (stored.bytes == data) is stays
        assert not stays or stored == pixels.Stored(data, kind, 64, 48)


def as_jpeg(data: bytes) -> pixels.Stored:
    """An image as `portable` shards store it."""
    return to_stored(data, portable=True, resize_short_side_px=0)


def test_comments_and_profiles_of_an_image_do_not_get_into_its_jpeg() -> None:
    """The same pixels are the same bytes."""
    plain, noted = encoded(picture(), "gif"), encoded(picture(), "gif", comment=b"by the sea")
    assert plain != noted
    assert as_jpeg(plain) == as_jpeg(noted)
    noted = encoded(picture(), "png", dpi=(30, 40), icc_profile=b"profile" * 50)
    assert as_jpeg(noted) == as_jpeg(encoded(picture(), "png"))


@needs_shared
def test_real_files_with_lying_names_and_cut_ones() -> None:
    rows = pq.read_table(SHARED / "near_duplicates_images.parquet").to_pylist()
    found = {row["image"]: read(row["image_bytes"]) for row in rows}
    corrupt = [name for name in found if "_corrupt" in name]
    assert len(corrupt) == 2
    for name, image in found.items():
        assert (image.pixels is None) is (name in corrupt), name
    assert all(found[name].format is None or found[name].damage for name in corrupt)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_machine_without_memory_does_not_make_an_image_damaged(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise MemoryError

    data = encoded(picture(), kind)
    monkeypatch.setattr("altalign.filters.pixels.simplejpeg.decode_jpeg", out_of_memory)
    monkeypatch.setattr("altalign.filters.pixels._on_white", out_of_memory)
    with pytest.raises(MemoryError):
        read(data)
    with pytest.raises(MemoryError):
        to_stored(data, portable=True, resize_short_side_px=64)


def test_a_header_that_no_memory_is_enough_for_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("altalign.filters.image_headers._open", out_of_memory)
    found = read(encoded(picture(), "png"))
    assert (found.format, found.width, found.damage) == ("png", None, "MemoryError")


def test_a_row_that_decoders_cannot_count_the_bits_of_is_damage_on_every_machine() -> None:
    """Pillow raises MemoryError for it, however much memory there is."""
    for width in (100_000_000, ROW_AT_MOST_PX + 1):
        header = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, 1, 8, 2, 0, 0, 0))
        data = header + chunk(b"IDAT", zlib.compress(b"\0" * 1_000)) + chunk(b"IEND", b"")
        found = read(data)
        assert (found.width, found.height, found.pixels) == (width, 1, None)
        assert "longer than" in (found.damage or "")
        with pytest.raises(ValueError, match="longer than"):
            as_jpeg(data)


@pytest.mark.parametrize(
    ("kind", "mode", "per_pixel"),
    [
        *[("jpeg", "RGB", 8), ("png", "L", 1), ("png", "RGB", 5), ("png", "RGBA", 12), ("png", "LA", 12)],
        *[("png", "I;16", 7), ("gif", "P", 2), ("bmp", "RGB", 5), ("tiff", "RGB", 8), ("tiff", "F", 30)],
        *[("avif", "RGB", 9), ("avif", "RGBA", 16), ("webp", "RGB", 16), ("webp", "RGBA", 20)],
    ],
)
def test_the_memory_that_decoding_takes_is_known_by_the_header(kind: str, mode: str, per_pixel: int) -> None:
    data = encoded(Image.new(mode, (320, 256)), kind)
    area = 320 * 256
    assert pixels.peak_bytes(data, colour=False, pixels_at_most=area, short_side_px=128) == area * per_pixel
    assert pixels.peak_bytes(data, colour=True) == area * (per_pixel + (0 if mode == "RGB" else 4))
    assert pixels.peak_bytes(data, colour=False, short_side_px=129) == area * (per_pixel + 4)
    assert pixels.peak_bytes(data, colour=False, pixels_at_most=area - 1) == 0


def test_what_will_not_be_decoded_takes_no_memory() -> None:
    for data in (b"", b"<svg>", encoded(picture(), "png")[:20], one_bit_png(ROW_AT_MOST_PX + 1, 1)):
        assert pixels.peak_bytes(data, colour=False) == 0

"""Pictures that decoders differ about: they are as browsers show them, and shards hold what all readers agree on."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms
from webdataset import autodecode

from altalign.filters import pixels
from altalign.filters.image_headers import is_plain_jpeg
from tests.support.pictures import chunk, encoded, picture

SIDE = 48
BLOCKS = picture(6, 6).resize((SIDE, SIDE), Image.Resampling.NEAREST)
TURNED = Image.Exif()
TURNED[0x0112] = 6


def shown(data: bytes) -> np.ndarray:
    found = pixels.decode(data, pixels_at_most=10**8, colour=True, short_side_px=pixels.FULL_SIZE_PX)
    assert found.damage is None
    assert found.pixels is not None
    return found.pixels.astype(int)


def stored(data: bytes) -> pixels.Stored:
    return pixels.to_stored(data, portable=True, resize_short_side_px=0)


def stored_pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(stored(data).bytes)).convert("RGB")).astype(int)


def png(rows: np.ndarray, before: bytes = b"", behind: bytes = b"", *, depth: int = 8, kind: int = 2) -> bytes:
    """A PNG of rows of samples, with chunks before and behind the pixels."""
    if depth == 16:
        lines = [row.astype(">u2").tobytes() for row in rows]
    else:
        bits = np.unpackbits(rows.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth :]
        lines = [np.packbits(row.ravel()).tobytes() for row in bits]
    head = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], depth, kind, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + line for line in lines)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + body + behind + chunk(b"IEND", b"")


def broken(name: bytes, content: bytes) -> bytes:
    whole = chunk(name, content)
    return whole[:-1] + bytes([whole[-1] ^ 1])


# JPEGs of shards ------------------------------------------------------------------------------------------------------


def with_segment(data: bytes, marker: int, content: bytes) -> bytes:
    return data[:2] + bytes((0xFF, marker)) + struct.pack(">H", len(content) + 2) + content + data[2:]


PLAIN = encoded(BLOCKS, "jpeg", quality=95)
XMP = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'
ODD_JPEGS = {
    "turned by EXIF": encoded(BLOCKS.resize((48, 30)), "jpeg", exif=TURNED),
    "turned by XMP": with_segment(PLAIN, 0xE1, XMP),
    "CMYK": encoded(BLOCKS.convert("CMYK"), "jpeg", quality=95),
    "turned CMYK": encoded(BLOCKS.convert("CMYK"), "jpeg", exif=TURNED),
    "JFIF cut short": with_segment(PLAIN, 0xE0, b"JFIF\0"),
    "Adobe cut short": with_segment(PLAIN, 0xEE, b"Adobe"),
    "Photoshop cut short": with_segment(PLAIN, 0xED, b"Photoshop 3.0\x008BIM\4\4"),
}


@pytest.mark.parametrize("name", ODD_JPEGS)
def test_a_jpeg_that_readers_show_otherwise_is_written_anew(name: str) -> None:
    data = ODD_JPEGS[name]
    made = stored(data)
    assert made.bytes != data
    assert is_plain_jpeg(made.bytes)
    assert np.abs(shown(made.bytes) - shown(data)).mean() < 9
    sample = autodecode.Decoder([autodecode.imagehandler("pil")])({"__key__": "a", "jpg": made.bytes})
    assert (sample["jpg"].mode, sample["jpg"].size) == ("RGB", (made.width, made.height))
    assert "turned by EXIF" not in name or (made.width, made.height) == (30, 48)
    assert pixels.to_stored(data, portable=False, resize_short_side_px=0).bytes == data


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"comment": b"tiff:Orientation"}, {"keep_rgb": True}])
def test_an_upright_jpeg_stays_as_found(mode: str, options: dict[str, object]) -> None:
    upright = Image.Exif()
    upright[0x010F] = "a camera"
    for more in ({}, {"exif": upright}, {"icc_profile": b"profile" * 50}):
        data = encoded(BLOCKS.convert(mode), "jpeg", **options, **more)
        assert stored(data) == pixels.Stored(data, "jpeg", SIDE, SIDE)
    assert stored(data := with_segment(PLAIN, 0xE2, b"MPF\0\xff\xff")).bytes == data


# Frames, runs and clear colours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
@given(
    lengths=st.lists(st.tuples(st.booleans(), st.integers(3, 40)), min_size=1, max_size=6),
    shift=st.integers(0, 1),
    seed=st.integers(0, 99),
)
@settings(derandomize=True, deadline=None, max_examples=40)
def test_run_lengths_of_a_bmp_are_read_whole(bits: int, lengths: list[tuple[bool, int]], shift: int, seed: int) -> None:
    rng, rows, body = np.random.default_rng(seed), list[list[int]](), b""
    for _ in range(3):
        row = list[int]()
        for is_run, count in lengths:
            values = rng.integers(0, 16, count).tolist()
            if is_run:
                values = [values[index % 2] if bits == 4 else values[0] for index in range(count)]
                body += bytes((count, values[0] << 4 | values[1] if bits == 4 else values[0]))
            else:
                pairs = zip(values[::2], [*values[1::2], 0], strict=False)
                run = bytes(high << 4 | low for high, low in pairs) if bits == 4 else bytes(values)
                body += bytes((0, count)) + run + bytes(len(run) % 2)
            row += values
        rows.append(row)
        body += b"\0\0"
    palette = rng.integers(0, 256, (16, 4), np.uint8)
    at = 54 + 64 + shift
    head = struct.pack("<IiiHHIIiiII", 40, len(rows[0]), 3, 1, bits, 2 if bits == 4 else 1, 0, 0, 0, 16, 0)
    data = b"BM" + struct.pack("<IHHI", 0, 0, 0, at) + head + palette.tobytes() + bytes(shift) + body + b"\0\1"
    assert np.array_equal(shown(data), palette[np.array(rows[::-1]), 2::-1])


@pytest.mark.parametrize(
    "body",
    [b"\2\1\0\2\1\0\1\1\0\0\4\1\0\1", b"\2\1\0\2\2\1\0\0\4\1\0\1", b"\3\1\0\0\4\1\0\1", b"\0\0\4\1\0\1"],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_run_lengths_of_a_bmp_that_leave_pixels_out_are_damage(bits: int, body: bytes) -> None:
    head = struct.pack("<IiiHHIIiiII", 40, 4, 2, 1, bits, 2 if bits == 4 else 1, 0, 0, 0, 2, 0)
    start = b"BM" + struct.pack("<IHHI", 0, 0, 0, 62) + head + b"\0\0\xff\0\xff\0\0\0"
    found = pixels.decode(start + body, pixels_at_most=100, colour=True)
    assert found.damage == "run lengths that leave pixels out"
    whole = start + b"\4\1\0\0\4\1" + b"\0\0\0\0\0\1\0\2\7\7"  # what stands behind the last row does not count
    assert shown(whole).shape == (2, 4, 3)


def test_what_a_gifs_frame_leaves_of_its_screen_is_white() -> None:
    whole = bytearray(encoded(BLOCKS.quantize(16), "gif"))
    inside = shown(bytes(whole))
    frame = whole.index(b",", 13 + (2 << (whole[10] & 7)) * 3)
    whole[6:10] = struct.pack("<HH", SIDE + 20, SIDE + 9)
    whole[11] = 3  # a background colour, which browsers ignore
    whole[frame + 1 : frame + 5] = struct.pack("<HH", 12, 4)
    wanted = np.full((SIDE + 9, SIDE + 20, 3), 255)
    wanted[4 : 4 + SIDE, 12 : 12 + SIDE] = inside
    assert np.array_equal(shown(bytes(whole)), wanted)


def test_what_a_webps_frame_leaves_of_its_screen_is_white() -> None:
    def part(name: bytes, content: bytes) -> bytes:
        return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)

    def sides(*numbers: int) -> bytes:
        return b"".join(struct.pack("<I", number)[:3] for number in numbers)

    frame = sides(4, 5, SIDE - 1, SIDE - 1, 100) + b"\2" + encoded(BLOCKS, "webp", quality=95)[12:]
    parts = part(b"VP8X", b"\2\0\0\0" + sides(79, 69)) + part(b"ANIM", b"\xff\0\0\xff\0\0") + part(b"ANMF", frame) * 2
    seen = shown(b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WEBP" + parts)
    assert seen.shape == (70, 80, 3)
    assert np.abs(seen[10 : 10 + SIDE, 8 : 8 + SIDE] - np.asarray(BLOCKS)).mean() < 12
    assert seen[:10].min() == seen[:, :8].min() == 255


@pytest.mark.parametrize("box", [(0, 0, SIDE, SIDE), (10, 6, 20, 30)])
@pytest.mark.parametrize("blend", [0, 1])
def test_the_default_image_of_an_animation_that_hides_it_is_not_shown(
    box: tuple[int, int, int, int], blend: int
) -> None:
    left, top, width, height = box
    frame = np.asarray(BLOCKS)[:height, :width]
    content = zlib.compress(b"".join(b"\0" + row.tobytes() for row in frame))
    control = struct.pack(">IIIIIHHBB", 0, width, height, left, top, 1, 1, 0, blend)
    animated = chunk(b"fcTL", control) + chunk(b"fdAT", struct.pack(">I", 1) + content)
    wanted = np.full((SIDE, SIDE, 3), 255)
    wanted[top : top + height, left : left + width] = frame
    black = np.zeros((SIDE, SIDE, 3), np.uint8)
    assert np.array_equal(shown(png(black, chunk(b"acTL", struct.pack(">II", 1, 0)), animated)), wanted)


@pytest.mark.parametrize("count", [b"\0\0", struct.pack(">II", 1, 0), struct.pack(">II", 2, 0)])
def test_an_animation_without_frames_is_its_default_image(count: bytes) -> None:
    assert np.array_equal(shown(png(np.asarray(BLOCKS), chunk(b"acTL", count))), np.asarray(BLOCKS))


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_a_clear_gray_of_a_png_is_white(depth: int) -> None:
    top = 2**depth - 1
    values = np.arange(SIDE**2).reshape(SIDE, SIDE) * 257 % (top + 1)
    clear = int(values[3, 5])
    wanted = values >> 8 if depth == 16 else values * 255 // top
    wanted = np.where(values == clear, 255, wanted)
    data = png(values, chunk(b"tRNS", struct.pack(">H", clear)), depth=depth, kind=0)
    assert np.array_equal(shown(data), np.repeat(wanted[..., None], 3, 2))


@pytest.mark.parametrize("depth", [8, 16])
def test_a_clear_colour_of_a_png_is_white(depth: int) -> None:
    values = np.asarray(BLOCKS).astype(int) * (256 if depth == 16 else 1) + (17 if depth == 16 else 0)
    clear = values[9, 9]
    wanted = np.where((values == clear).all(-1)[..., None], 255, np.asarray(BLOCKS))
    assert np.array_equal(shown(png(values, chunk(b"tRNS", struct.pack(">3H", *clear)), depth=depth)), wanted)


# Metadata -------------------------------------------------------------------------------------------------------------

ANCILLARY = (b"tEXt", b"zTXt", b"iTXt", b"eXIf", b"iCCP", b"pHYs", b"gAMA", b"cHRM", b"sRGB", b"bKGD", b"tRNS", b"prVt")
LONG = {
    b"tEXt": b"k\0" + b"x" * 70_000_000,
    b"zTXt": b"k\0\0" + zlib.compress(b"x" * 3_000_000),
    b"iTXt": b"k\0\1\0\0\0" + zlib.compress(b"x" * 3_000_000),
    b"eXIf": b"MM\0*\0\0\0\x08\0\0" + bytes(3_000_000),
}


@pytest.mark.parametrize("name", ANCILLARY)
def test_broken_metadata_of_a_png_does_not_break_the_picture(name: bytes) -> None:
    rows = np.asarray(BLOCKS)
    contents = [(name, b"\1")] if name in (b"tRNS", b"iCCP") else [(name, b"\1"), (name, b"k\0\0abcdef")]
    for each in [broken(*content) for content in contents] + [
        chunk(*content) for content in contents if name != b"tRNS"
    ]:
        for data in (png(rows, each), png(rows, b"", each), png(rows, b"", each)[:-16]):
            assert np.array_equal(shown(data), rows), (name, each)
            assert np.abs(stored_pixels(data) - rows).mean() < 12


@pytest.mark.parametrize("name", LONG)
def test_metadata_of_a_png_may_be_long(name: bytes) -> None:
    rows = np.asarray(BLOCKS)
    for data in (png(rows, chunk(name, LONG[name])), png(rows, b"", chunk(name, LONG[name]))):
        assert np.array_equal(shown(data), rows)


@pytest.mark.parametrize("kind", [b"EXIF", b"XMP "])
def test_broken_metadata_of_a_webp_does_not_break_the_picture(kind: bytes) -> None:
    body = encoded(BLOCKS, "webp", quality=95)[12:]
    for content in (b"junk" * 9, b"<x>" * 700_000, b""):
        head = b"VP8X\x0a\0\0\0\x0c\0\0\0" + (struct.pack("<I", SIDE - 1)[:3]) * 2
        meta = kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)
        data = b"RIFF" + struct.pack("<I", 4 + len(head + body + meta)) + b"WEBP" + head + body + meta
        assert np.array_equal(shown(data), shown(encoded(BLOCKS, "webp", quality=95)))


@given(
    marker=st.integers(0xE0, 0xEF),
    name=st.sampled_from([b"", b"JFIF\0", b"Exif\0\0", b"Photoshop 3.0\0", b"MPF\0", b"ICC_PROFILE\0"]),
    rest=st.binary(max_size=40),
)
@settings(derandomize=True, deadline=None, max_examples=200)
def test_any_segment_of_an_application_leaves_a_jpeg_sound(marker: int, name: bytes, rest: bytes) -> None:
    data = with_segment(PLAIN, marker, name + rest)
    assert pixels.decode(data, pixels_at_most=10**8, colour=True).damage is None
    assert is_plain_jpeg(stored(data).bytes)


# Colours --------------------------------------------------------------------------------------------------------------


def made_profile(*, swap: bool = True) -> bytes:
    """That of sRGB; with red and green in each other's place."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return profile.replace(b"rXYZ", b"?").replace(b"gXYZ", b"rXYZ").replace(b"?", b"gXYZ") if swap else profile


@pytest.mark.parametrize("kind", ["png", "webp", "avif", "tiff", "turned jpeg", "palette png"])
def test_colours_by_a_profile_become_those_of_srgb(kind: str) -> None:
    image = BLOCKS.quantize(16) if kind.startswith("palette") else BLOCKS
    options = {"exif": TURNED} if kind.startswith("turned") else {}
    options |= {"quality": 95} if kind.split()[-1] in ("webp", "avif", "jpeg") else {}
    as_is = stored_pixels(encoded(image, kind.split()[-1], **options))
    by_profile = stored_pixels(encoded(image, kind.split()[-1], icc_profile=made_profile(), **options))
    assert np.abs(by_profile[..., [1, 0, 2]] - as_is).mean() < 8
    assert np.abs(by_profile - as_is).mean() > 15
    plain = stored_pixels(encoded(image, kind.split()[-1], icc_profile=made_profile(swap=False), **options))
    assert np.abs(plain - as_is).mean() < 2
    for bad in (b"junk" * 99, made_profile()[:300]):
        assert np.array_equal(stored_pixels(encoded(image, kind.split()[-1], icc_profile=bad, **options)), as_is)


def test_colours_of_a_png_by_numbers_become_those_of_srgb() -> None:
    ramp = np.repeat(np.arange(256), 4).reshape(32, 32)
    rows = np.repeat(ramp[..., None], 3, 2)
    gamma = {number: chunk(b"gAMA", struct.pack(">I", number)) for number in (0, 45_455, 100_000, 60_000)}
    p3 = chunk(b"cHRM", struct.pack(">8I", 31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000))
    as_is = stored_pixels(png(rows))
    for same in (gamma[0], gamma[45_455], p3, chunk(b"sRGB", b"\0") + gamma[100_000]):
        assert np.array_equal(stored_pixels(png(rows, same)), as_is)
    for number in (100_000, 60_000):
        light = (ramp / 255) ** (1e5 / number)
        wanted = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055) * 255
        for data in (png(rows, gamma[number]), png(ramp, gamma[number], kind=0)):
            assert np.abs(stored_pixels(data)[..., 1] - wanted).max() <= 4
    greens = np.full((32, 32, 3), (60, 160, 60))
    # light of 2.2 by the matrix of CSS Color 4
    assert np.abs(stored_pixels(png(greens, gamma[45_455] + p3)) - (0, 164, 35)).max() <= 3


def test_a_profile_of_gray_counts_and_one_of_another_space_does_not() -> None:
    linear = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    gray = BLOCKS.convert("L")
    assert np.array_equal(stored_pixels(encoded(gray, "png", icc_profile=linear)), stored_pixels(encoded(gray, "png")))
    assert (
        np.abs(
            stored_pixels(encoded(gray, "png", icc_profile=made_profile(swap=False)))
            - stored_pixels(encoded(gray, "png"))
        ).max()
        <= 3
    )


# Formats that are not read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\xff\x4f\xff\x51\0", "JPEG 2000"),
        (b"\xff\x0a\xfa\x1f", "JPEG XL"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- drawn -->\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (
            b'<!-- <g> < 2 -->\n<!DOCTYPE svg [<!ENTITY a "b">]>\n<!-- <svg --> <svg xmlns="http://www.w3.org/2000/svg"/>',
            "SVG",
        ),
    ],
)
def test_a_format_that_is_not_read_is_named_with_what_reads_it(data: bytes, name: str) -> None:
    found = pixels.decode(data, pixels_at_most=10**8, colour=True)
    assert found.format is None
    assert (found.damage or "").startswith(f"{name}, which is not read; convert it to JPEG or PNG with ")

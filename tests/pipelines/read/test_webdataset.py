"""WebDataset tars: samples, captions, URLs, where images are, and what is broken; what img2dataset leaves beside."""

import hashlib
import json
import random
import tarfile
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.errors import UnreadableError, UsageError
from altalign.pipelines import read
from altalign.settings.curate import InputSettings
from tests.hostile.files import picture
from tests.support import img2dataset
from tests.support.archives import compress
from tests.support.archives import read_all as read_all_of
from tests.support.img2dataset import Asked
from tests.support.tars import tar

SETTINGS = InputSettings(kind="webdataset", paths=["-"])
FORMS = [".tar", ".tar.gz", ".tar.zst"]


def read_all(path: Path, settings: InputSettings = SETTINGS) -> tuple[list[dict], list[dict], list[dict]]:
    return read_all_of(path, settings)


def write(path: Path, members: list[tuple[str, bytes]]) -> Path:
    return compress(path, tar(members))


def bytes_of(path: Path, place: dict) -> bytes:
    return (
        place["bytes"]
        if place["bytes"] is not None
        else path.read_bytes()[place["offset"] : place["offset"] + place["length"]]
    )


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("form", FORMS)
def test_samples_are_read_in_order_with_the_bytes_of_their_images(tmp_path, form):
    members = [
        ("a/0001.jpg", b"one"),
        ("a/0001.txt", b" a caption "),
        ("a/0001.json", json.dumps({"url": " http://a/1#x", "caption": "of json"}).encode()),
        ("b/0001.JSON", json.dumps({"caption": "of json"}).encode()),
        ("b/0001.PNG", b"two"),
        ("b/0001.webp", b"second image"),
        ("c.d/0002.seg.png", b"no image of a sample"),
        ("c.d/0002.avif", b"three"),
        ("0003.json", b'{"url": "http://a/3"}'),
        ("0003.jpg", b""),
        ("0004.cls", b"1"),
        ("0005.txt", b"no image"),
        ("0006.jpeg", b"two"),
        ("x" * 150 + ".tiff", b"long name"),
    ]
    path = write(tmp_path / f"shard{form}", members)
    rows, broken, places = read_all(path)
    assert [entry["error"] for entry in broken] == [
        "no image, .txt or .json of one name before the first dot, but 0004.cls"
    ]
    assert [(row["image_identity"], row["caption"]) for row in rows] == [
        ("http://a/1", "a caption"),
        (sha(b"two"), "of json"),
        (sha(b"three"), ""),
        ("http://a/3", ""),
        (None, "no image"),
        (sha(b"two"), ""),
        (sha(b"long name"), ""),
    ]
    assert [place["image_identity"] for place in places] == [
        "http://a/1",
        sha(b"two"),
        sha(b"three"),
        sha(b"two"),
        sha(b"long name"),
    ]
    found = [bytes_of(path, place) for place in places]
    assert found == [b"one", b"two", b"three", b"two", b"long name"]
    assert all((place["bytes"] is None) == (form == ".tar") for place in places)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"url": 1}', b'{"caption": {}}', b"\xff"])
def test_a_broken_side_car_costs_its_sample(tmp_path, content):
    path = write(
        tmp_path / "a.tar",
        [("1.jpg", b"one"), ("2.jpg", b"two"), ("2.json", content), ("2.txt", b"x"), ("3.jpg", b"three")],
    )
    rows, broken, places = read_all(path)
    assert (
        [row["image_identity"] for row in rows]
        == [place["image_identity"] for place in places]
        == [sha(b"one"), sha(b"three")]
    )
    assert [entry["offset"] for entry in broken] == [1_024]
    assert "2.json" in broken[0]["error"]


@pytest.mark.parametrize("form", FORMS)
def test_a_tar_cut_in_two_cannot_be_read(tmp_path, form):
    path = write(
        tmp_path / f"a{form}", [(f"{number}.jpg", random.Random(number).randbytes(5_000)) for number in range(20)]
    )
    whole = path.read_bytes()
    for size in (len(whole) // 2 + 37, len(whole) // 2 - 900, 700):
        path.write_bytes(whole[:size])
        with pytest.raises(UnreadableError, match=r"a\.tar"):
            read_all(path)


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_header_or_another_kind_of_file_cannot_be_read(tmp_path, form):
    write(tmp_path / "a.tar", [(f"{number}.jpg", b"x" * 600) for number in range(4)])
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[2 * 1_536 + 150] ^= 0xFF
    for spoilt in (bytes(data), b"<html>" * 500):
        with pytest.raises(UnreadableError, match=f"a{form}"):
            read_all(compress(tmp_path / f"a{form}", spoilt))


@pytest.mark.parametrize("form", FORMS)
def test_a_tar_without_samples_is_no_error(tmp_path, form):
    assert read_all(write(tmp_path / f"a{form}", [])) == ([], [], [])
    assert read_all(compress(tmp_path / f"b{form}", b"")) == ([], [], [])
    (tmp_path / f"c{form}").touch()
    assert read_all(tmp_path / f"c{form}") == ([], [], [])


def test_references_are_decoded_where_settings_say_so(tmp_path):
    path = write(tmp_path / "a.tar", [("1.jpg", b"one"), ("1.txt", b"Tom &amp; Jerry")])
    assert read_all(path)[0][0]["caption"] == "Tom &amp; Jerry"
    assert read_all(path, SETTINGS.model_copy(update={"decode_entities": True}))[0][0]["caption"] == "Tom & Jerry"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("side_car", ["txt", "json"])
def test_an_endless_caption_costs_its_sample(tmp_path, monkeypatch, form, side_car):
    monkeypatch.setattr("altalign.pipelines.read.webdataset.LINE_BYTES", 100)
    rows, broken, places = read_all(
        write(
            tmp_path / f"a{form}",
            [("1.jpg", b"one"), (f"1.{side_car}", b"x" * 101), ("2.jpg", b"two"), ("2.txt", b"x" * 100)],
        )
    )
    assert [entry["offset"] for entry in broken] == [0]
    assert f"1.{side_car}" in broken[0]["error"]
    assert [row["image_identity"] for row in rows] == [place["image_identity"] for place in places] == [sha(b"two")]


@pytest.mark.parametrize("form", FORMS)
def test_an_image_beyond_the_limit_is_cut_whatever_the_compression(tmp_path, monkeypatch, form):
    monkeypatch.setattr("altalign.pipelines.read.webdataset.IMAGE_BYTES", 10_000)
    images = [random.Random(size).randbytes(size) for size in (10_000, 10_001, 50_000)]
    path = write(
        tmp_path / f"a{form}",
        [(f"{number}.jpg", image) for number, image in enumerate(images)] + [("last.txt", b"caption")],
    )
    rows, broken, places = read_all(path)
    assert broken == []
    assert [row["image_identity"] for row in rows] == [*(sha(image[:10_000]) for image in images), None]
    found = [bytes_of(path, place) for place in places]
    assert found == [image[:10_000] for image in images]


@pytest.mark.parametrize("form", [".tar.gz", ".tar.zst"])
def test_an_image_beyond_the_limit_is_never_held_whole(tmp_path, monkeypatch, form):
    monkeypatch.setattr("altalign.pipelines.read.webdataset.IMAGE_BYTES", 1 << 20)
    path = write(tmp_path / f"a{form}", [("1.jpg", bytes(24 << 20)), ("2.jpg", b"two")])
    tracemalloc.start()
    try:
        places = read_all(path)[2]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(place["bytes"]) for place in places] == [1 << 20, 3]
    assert most < 12 << 20


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_header_without_end_cannot_be_read(tmp_path, monkeypatch, form, kind):
    monkeypatch.setattr("altalign.pipelines.read.tar_members.LINE_BYTES", 1_000)
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 1_001
    with pytest.raises(UnreadableError, match="header of 1001 bytes"):
        read_all(compress(tmp_path / f"a{form}", header.tobuf() + b"x" * 1_024 + bytes(10_240)))


def test_many_samples_come_in_bounded_stretches(tmp_path):
    path = write(tmp_path / "a.tar.gz", [(f"{number}.jpg", b"%d" % number) for number in range(9_000)])
    stretches = [found.rows.num_rows for found in read.read(str(path), SETTINGS)]
    assert max(stretches) <= 8_192
    assert sum(stretches) == 9_000


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ([("0.png", b"A"), ("0.txt", b"first"), ("0.png", b"B"), ("0.txt", b"second")], "0.txt: a second .txt"),
        ([("photo.0.jpg", b"A"), ("photo.0.txt", b"one")], "no image, .txt or .json of one name before the first dot"),
        ([("2.jpg", b"A"), ("2.txt", b"a \xff caption")], "2.txt: not UTF-8 (byte 2)"),
    ],
)
def test_what_makes_no_sample_is_counted(tmp_path, members, error):
    rows, broken, places = read_all(write(tmp_path / "a.tar", members))
    assert (rows, places) == ([], [])
    assert len(broken) == 1
    assert error in broken[0]["error"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "beside", ["{folder}._{name}", "__MACOSX/{folder}._{name}", "{folder}PaxHeader/{name}", "PaxHeaders.71/{name}"]
)
@pytest.mark.parametrize("folder", ["", "./", "photos/"])
def test_files_of_attributes_beside_members_are_left_out(tmp_path, form, beside, folder):
    members = []
    for number in range(3):
        for name, data in ((f"{number}.jpg", b"image %d" % number), (f"{number}.txt", b"caption %d" % number)):
            members.append((beside.format(folder=folder, name=name), b"\0\5\x16\7" + bytes(99)))
            members.append((folder + name, data))
    path = write(tmp_path / f"mac{form}", members)
    rows, broken, places = read_all(path)
    assert [(row["image_identity"], row["caption"]) for row in rows] == [
        (sha(b"image %d" % number), f"caption {number}") for number in range(3)
    ]
    assert [bytes_of(path, place) for place in places] == [b"image %d" % number for number in range(3)]
    assert broken == []


def test_names_that_only_look_like_those_of_attributes_are_samples(tmp_path):
    names = ["a._b", "_.c", "MACOSX", "my__MACOSX", "PaxHeader"]
    path = write(tmp_path / "plain.tar", [(f"{name}.txt", b"a caption") for name in names])
    assert len(read_all(path)[0]) + len(read_all(path)[1]) == len(names)


@pytest.mark.parametrize("form", FORMS)
def test_an_image_without_a_byte_is_in_hand_unless_an_address_leads_to_it(tmp_path, form):
    members = [
        ("a.jpg", b""),
        ("a.txt", b"one"),
        ("b.jpg", b""),
        ("b.json", b'{"url": "http://a/b"}'),
        ("c.txt", b"none"),
    ]
    rows, _, places = read_all(path := write(tmp_path / f"a{form}", members))
    assert [row["image_identity"] for row in rows] == [sha(b""), "http://a/b", None]
    assert [(place["image_identity"], bytes_of(path, place)) for place in places] == [(sha(b""), b"")]


# Side-cars of img2dataset ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, of which all came of the second."""
    rows = [
        Asked("http://a/1", "one came", picture()),
        Asked("http://a/2", "two did not"),
        Asked("http://a/3", "three was too small", status="failed_to_resize"),
        Asked("http://a/4", None),
    ]
    img2dataset.write(tmp_path / "laion", 0, rows)
    img2dataset.write(tmp_path / "laion", 1, [Asked("http://a/5", "five came", picture(9))])
    return tmp_path / "laion"


def test_a_folder_stands_for_its_tars_and_side_cars(folder: Path) -> None:
    names = ["00000.parquet", "00000.tar", "00001.parquet", "00001.tar"]
    for places in ([str(folder)], [str(path) for path in sorted(folder.iterdir())]):
        paths = read.listed(places, SETTINGS)
        assert paths == [str(folder / name) for name in names]
        read.check(paths, SETTINGS)


def test_what_did_not_come_is_a_candidate_without_an_image(folder: Path) -> None:
    rows, broken, places = read_all(folder / "00000.parquet")
    assert (broken, places) == ([], [])
    assert [(row["image_identity"], row["caption"], row["page_url"]) for row in rows] == [
        ("http://a/2", "two did not", None),
        ("http://a/3", "three was too small", None),
        ("http://a/4", "", None),
    ]
    assert read_all(folder / "00001.parquet")[0] == []
    came = read_all(folder / "00000.tar")[0]
    assert [(row["image_identity"], row["caption"]) for row in came] == [("http://a/1", "one came")]
    names = [f"00000.parquet#00000000{number}" for number in (1, 2, 3)]
    assert ([row["source_key"] for row in rows], came[0]["source_key"]) == (names, "00000.tar#000000000")


def test_other_tables_beside_tars_are_no_side_cars(folder: Path) -> None:
    for path in folder.glob("*.parquet"):
        pq.write_table(pa.table({"key": ["a"], "caption": ["b"]}), path)
    assert read.listed([str(folder)], SETTINGS) == [str(folder / "00000.tar"), str(folder / "00001.tar")]
    with pytest.raises(UsageError, match='a table by its name, and kind = "webdataset"'):
        read.check([str(folder / "00000.parquet")], SETTINGS)


def test_a_side_car_without_captions_is_refused(folder: Path) -> None:
    table = pq.read_table(folder / "00000.parquet").drop_columns(["caption"])
    pq.write_table(table, folder / "00000.parquet")
    with pytest.raises(UsageError, match='no column "caption"'):
        read.check([str(folder / "00000.parquet")], SETTINGS)

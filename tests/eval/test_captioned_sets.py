import json
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.data import key, shards
from altalign.errors import AltalignError, DamagedError, UnreadableError, UsageError
from altalign.eval import image_sources
from altalign.eval.image_sources import NO_IMAGE
from altalign.eval.sets import NO_CAPTION, ImageSet, captioned_set
from tests.support.tars import tar as tar_of

parquet_set = partial(captioned_set, kind="parquet")
webdataset_set = partial(captioned_set, kind="webdataset")
run_set = partial(captioned_set, kind="folder")
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def found(images: ImageSet) -> list[tuple[bytes, list[str]]]:
    first, again = ([(each.image, each.captions) for each in images] for _ in range(2))
    assert first == again  # it can be gone through twice
    assert len(images) == len(first)
    return first


def counted(images: ImageSet) -> dict[str, int]:
    return {reason: len(names) for reason, names in images.left_out.items()}


def table(
    path: Path, images: Sequence[object], captions: Sequence[object], image_type: pa.DataType | None = None
) -> str:
    pq.write_table(
        pa.table({"image": pa.array(images, image_type or pa.binary()), "caption": pa.array(captions)}),
        path,
        row_group_size=3,
    )
    return str(path)


# Tables --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 256])
def test_rows_of_one_image_are_one_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(image_sources, "_ROWS", rows)
    table(tmp_path / "a.parquet", [b"x", b"y", b"x", b"z"], ["one", "two", "three", "four"])
    table(tmp_path / "b.parquet", [b"w", b"y", b"y"], ["five", "six", "two"])  # the last says again what was said
    images = parquet_set([f"{tmp_path}/*.parquet"])
    assert found(images) == [
        (b"x", ["one", "three"]),
        (b"y", ["two", "six", "two"]),
        (b"z", ["four"]),
        (b"w", ["five"]),
    ]
    assert images.images.names[2] == f"{tmp_path}/a.parquet#3"
    assert not images.left_out


@pytest.mark.parametrize(("at_most", "captions"), [(0, ["a", "b", "a", "c"]), (2, ["a", "b"]), (3, ["a", "b", "a"])])
def test_the_first_captions_of_an_image_are_taken(tmp_path: Path, at_most: int, captions: list[str]) -> None:
    images = parquet_set([table(tmp_path / "a.parquet", [b"x"], [["a", "b", "a", "c"]])])
    assert found(images.with_captions(at_most=at_most)) == [(b"x", captions)]


def test_lists_of_captions_stay_whole(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", [b"x", b"y"], [["a", "a", "b"], ["c", None, " "]])
    assert found(parquet_set([path])) == [(b"x", ["a", "a", "b"]), (b"y", ["c"])]


def test_images_in_structs_as_hugging_face_writes_them(tmp_path: Path) -> None:
    values = [{"bytes": b"x", "path": "x.jpg"}, {"bytes": None, "path": "y.jpg"}, None, {"bytes": b"z", "path": None}]
    images = parquet_set([table(tmp_path / "a.parquet", values, list("abcd"), STRUCT)])
    assert found(images) == [(b"x", ["a"]), (b"z", ["d"])]
    assert counted(images) == {NO_IMAGE: 2}


def test_rows_without_image_or_caption_are_counted(tmp_path: Path) -> None:
    images = parquet_set([table(tmp_path / "a.parquet", [b"x", None, b"", b"y", b"z"], ["a", "b", "c", "", None])])
    assert found(images) == [(b"x", ["a"])]
    assert counted(images) == {NO_IMAGE: 2, NO_CAPTION: 2}


def test_fewer_images_are_among_more_and_keep_all_captions(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", [b"%d" % (row % 40) for row in range(80)], [str(row) for row in range(80)])
    everything = found(parquet_set([path]))
    chosen = [found(parquet_set([path], images_at_most=number)) for number in (1, 7, 39, 40, 41)]
    assert [len(each) for each in chosen] == [1, 7, 39, 40, 40]
    for fewer, more in zip(chosen, [*chosen[1:], everything], strict=True):
        assert [each for each in more if each in fewer] == fewer  # the same images, in the same order
    other = table(
        tmp_path / "b.parquet", [b"%d" % (39 - row % 40) for row in range(80)], [str(row) for row in range(80)]
    )
    assert {image for image, _ in found(parquet_set([other], images_at_most=7))} == {image for image, _ in chosen[1]}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"image_column": "jpg"}, "no column 'jpg' \\(there are image, caption\\)"),
        ({"caption_column": "text"}, "no column 'text'"),
        ({"image_column": "caption"}, "'caption' is string, not bytes of images"),
        ({"caption_column": "image"}, "'image' holds bytes, not captions"),
    ],
)
def test_columns_that_are_not_there_or_of_another_kind_are_named(
    tmp_path: Path, columns: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        parquet_set([table(tmp_path / "a.parquet", [b"x"], ["a"])], **columns)


@pytest.mark.parametrize("read", [parquet_set, webdataset_set])
def test_what_is_not_there_or_damaged_is_said_in_one_line(
    tmp_path: Path, read: Callable[[Sequence[str]], ImageSet]
) -> None:
    (tmp_path / "damaged").write_bytes(b"neither a table nor a tar" * 50)
    (tmp_path / "empty").write_bytes(b"")
    for path, error in (
        ("nothing*", UsageError),
        (".", UsageError),
        ("damaged", UnreadableError),
        ("empty", UnreadableError),
    ):
        with pytest.raises(error) as caught:
            read([f"{tmp_path}/{path}"])
        assert "\n" not in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_a_set_without_a_pair_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(
        UnreadableError, match=r"no image with a caption \(1 rows with no image, 2 rows with no caption\)"
    ):
        parquet_set([table(tmp_path / "a.parquet", [None, b"y", b"z"], ["a", "", " "])])
    with pytest.raises(UnreadableError, match=r"no image with a caption \(no rows\)"):
        parquet_set([table(tmp_path / "b.parquet", [], pa.array([], pa.string()))])


# Tars ----------------------------------------------------------------------------------------------------------------


def tar(path: Path, members: Sequence[tuple[str, bytes]]) -> str:
    path.write_bytes(tar_of(members))
    return str(path)


def test_samples_of_tars_with_every_form_of_captions(tmp_path: Path) -> None:
    members = [
        ("a/0.jpg", b"x"), ("a/0.txt", b"one"), ("a/0.json", b'{"width": 3}'),
        ("b/0.txt", "zwölf\n\nthree\n".encode()), ("b/0.png", b"y"), ("b/0.cls", b"7"),
        ("1.JPEG", b"z"), ("1.json", b'{"captions": ["four", "five"], "caption": "no"}'), ("1.txt", b"no"),
        ("2.webp", b"w"), ("2.json", b'{"caption": "six"}'),
        ("3.json", b'["no"]'), ("3.jpg", b"v"),
        ("4.txt", b"no image"),
        ("5.seg.png", b"no"), ("5.jpg", b"u"), ("5.txt", b"seven"),
    ]  # fmt: skip
    images = webdataset_set(
        [tar(tmp_path / "a.tar", members), tar(tmp_path / "b.tar", [("0.jpg", b"x"), ("0.txt", b"eight")])]
    )
    expected = [
        (b"x", ["one", "eight"]),
        (b"y", ["zwölf", "three"]),
        (b"z", ["four", "five"]),
        (b"w", ["six"]),
        (b"u", ["seven"]),
    ]
    assert found(images) == expected
    assert counted(images) == {NO_CAPTION: 1, NO_IMAGE: 1}
    assert images.images.names[0] == f"{tmp_path}/a.tar/a/0.jpg"


@pytest.mark.parametrize("cut", [700, 1024, 1300, 1536, 2048, 2600])
def test_a_tar_that_is_cut_anywhere_is_an_error(tmp_path: Path, cut: int) -> None:
    whole = Path(tar(tmp_path / "a.tar", [("0.jpg", b"x" * 600), ("0.txt", b"one"), ("1.jpg", b"y")]))
    whole.write_bytes(whole.read_bytes()[:cut])
    with pytest.raises(UnreadableError, match=r"a\.tar: cannot be read as tar"):
        webdataset_set([str(whole)])


def test_a_tar_that_is_damaged_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = Path(tar(tmp_path / "a.tar", [("0.jpg", b"x"), ("0.txt", b"one"), ("1.jpg", b"y"), ("1.txt", b"two")]))
    content = bytearray(path.read_bytes())
    content[2048:2100] = b"?" * 52  # the header of 1.jpg
    path.write_bytes(content)
    with pytest.raises(UnreadableError, match="at 2,048: it is damaged"):
        webdataset_set([str(path)])


def test_json_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"0\.json: not JSON"):
        webdataset_set([tar(tmp_path / "a.tar", [("0.jpg", b"x"), ("0.json", b"{")])])


def test_a_file_that_was_cut_after_it_was_listed_is_an_error(tmp_path: Path) -> None:
    path = Path(
        tar(tmp_path / "a.tar", [("0.jpg", b"x"), ("0.txt", b"one"), ("1.jpg", b"y" * 9000), ("1.txt", b"two")])
    )
    images = webdataset_set([str(path)])
    path.write_bytes(path.read_bytes()[:4000])
    with pytest.raises(UnreadableError, match=r"ends within .*1\.jpg"):
        list(images)


# Karpathy's JSON -----------------------------------------------------------------------------------------------------


def karpathy(folder: Path, images: Sequence[tuple[str, str, str, list[str]]]) -> str:
    entries = [
        {"filepath": inner, "filename": name, "split": split, "sentences": [{"raw": one, "sentid": 1} for one in said]}
        for inner, name, split, said in images
    ]
    if not all(inner for inner, *_ in images):  # as Flickr30K's
        for entry in entries:
            del entry["filepath"]
    path = folder / "dataset.json"
    path.write_text(json.dumps({"dataset": "coco", "images": entries}))
    return str(path)


@pytest.mark.parametrize("inner", ["val2014", ""])
def test_images_of_karpathys_json_keep_their_captions_and_stay_apart(tmp_path: Path, inner: str) -> None:
    place = tmp_path / "images" / inner
    place.mkdir(parents=True)
    for name, data in (("a.jpg", b"x"), ("b.jpg", b"x"), ("c.jpg", b"y")):
        (place / name).write_bytes(data)
    images = [
        (inner, "a.jpg", "test", ["one", "one", "two"]),
        (inner, "b.jpg", "test", ["three"]),  # the same bytes
        (inner, "c.jpg", "val", ["no"]),
        (inner, "lost.jpg", "test", ["four"]),
    ]
    path = karpathy(tmp_path, images)
    of = captioned_set([path], images=str(tmp_path / "images"), split="test")
    assert found(of) == [(b"x", ["one", "one", "two"]), (b"x", ["three"])]
    assert of.left_out == {NO_IMAGE: [str(tmp_path / "images" / "lost.jpg")]}
    flat = captioned_set([path], images=str(place), split="val")
    assert found(flat) == [(b"y", ["no"])]


def test_a_json_that_is_none_of_karpathys_is_named(tmp_path: Path) -> None:
    path = karpathy(tmp_path, [("", "a.jpg", "test", ["one"])])
    with pytest.raises(UsageError, match="no image of split 'dev'"):
        captioned_set([path], images=str(tmp_path), split="dev")
    with pytest.raises(UnreadableError, match="1 rows with no image"):
        captioned_set([path], images=str(tmp_path), split="test")
    for content, said in (('{"images": [{}]}', "KeyError"), ("{}", "no image of"), ('{"images": [3]}', "TypeError")):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(UsageError, match=said):
            captioned_set([str(tmp_path / "other.json")], images=str(tmp_path), split="test")


# Runs ----------------------------------------------------------------------------------------------------------------


def run(folder: Path, of_shards: Sequence[Sequence[tuple[bytes, str]]]) -> str:
    """A run folder as its readers see it."""
    (folder / "shards").mkdir(parents=True)
    for number, samples in enumerate(of_shards):
        path = folder / "shards" / f"{number:05}.tar"
        with path.open("wb") as file:
            writer = shards.ShardWriter(file)
            rows = [writer.write(image, row(image, caption)) for image, caption in samples]
            writer.end()
        with path.with_suffix(".parquet").open("wb") as file:
            shards.write_sidecar(rows, file, path.name)
    names = [{"name": f"{number:05}.tar"} for number in range(len(of_shards))]
    (folder / "manifest.json").write_text(json.dumps({"shards": names}))
    return str(folder)


def row(image: bytes, caption: str) -> dict[str, object]:
    identity = sha256(image).hexdigest()
    texts = {
        "image_url": None,
        "page_url": None,
        "source_key": None,
        "extra": None,
        "preferences": None,
        "caption": caption,
        "source": "test",
        "format": "jpeg",
        "sha256": identity,
        "found_sha256": identity,
    }
    numbers = {"width": 9, "height": 9, "bytes": len(image), "words": 1, "tar_offset": 0, "tar_bytes": 0}
    return {"key": key.sample_key(identity, caption), "image_id": key.image_id(identity), **texts, **numbers}


def test_pairs_of_runs_are_grouped_by_image(tmp_path: Path) -> None:
    one = run(tmp_path / "one", [[(b"x", "a"), (b"x", "b"), (b"y" * 700, "c")], [(b"z", "d")]])
    two = run(tmp_path / "two", [[(b"z", "e"), (b"z", "d")]])
    assert found(run_set([one, two])) == [(b"x", ["a", "b"]), (b"y" * 700, ["c"]), (b"z", ["d", "e", "d"])]
    assert len(run_set([one, two], images_at_most=2)) == 2


def test_a_run_that_is_not_finished_or_is_damaged_is_named(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", [[(b"x", "a")]])
    sidecar = tmp_path / "run" / "shards" / "00000.parquet"
    sidecar.write_bytes(sidecar.read_bytes()[:-9])
    (tmp_path / "begun").mkdir()
    cases: list[tuple[str, type[AltalignError], str]] = [
        (folder, DamagedError, "00000.parquet: not as it was written"),
        (str(tmp_path / "begun"), UsageError, "no finished run"),
        (str(tmp_path / "nowhere"), UsageError, "no finished run"),
    ]
    for path, error, said in cases:
        with pytest.raises(error, match=said) as caught:
            run_set([path])
        assert "\n" not in str(caught.value)

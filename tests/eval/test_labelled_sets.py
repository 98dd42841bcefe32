import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.data.shards import IMAGE_NAMES
from altalign.errors import UnreadableError, UsageError
from altalign.eval.class_names import Classes, templates
from altalign.eval.image_sources import NO_IMAGE
from altalign.eval.sets import EMPTY_CLASS, NO_LABEL, LabelledSet, labelled_set
from tests.support.tars import tar as tar_of


def found(of: LabelledSet) -> list[tuple[bytes, str]]:
    first, again = (list(of.images.read(range(len(of.images)))) for _ in range(2))
    assert first == again
    return [(data, of.classes.names[label]) for data, label in zip(first, of.labels, strict=True)]


def folder(place: Path, classes: dict[str, list[str]]) -> str:
    for name, files in classes.items():
        for file in files:
            path = place / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{name}/{file}".encode())
        (place / name).mkdir(parents=True, exist_ok=True)
    return str(place)


def tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_of(members.items()))


def web_folder(place: Path, *, names: str = "cat\ndog\n", shards: int = 2) -> str:
    tar(place / "test" / "0.tar", {"0.webp": b"x", "0.cls": b"1", "1.jpg": b"y", "1.cls": b"0\n", "2.jpg": b"z"})
    tar(place / "test" / "1.tar", {"3.png": b"x", "3.cls": b"1", "4.cls": b"1"})
    (place / "test" / "nshards.txt").write_text(f"{shards}\n")
    (place / "classnames.txt").write_text(names)
    return str(place)


def test_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    of = labelled_set(folder(tmp_path, {"b_c": ["1.jpg", "0.PNG", "notes.txt"], "a": ["in/2.webp"], "empty": []}))
    assert found(of) == [(b"a/in/2.webp", "a"), (b"b_c/0.PNG", "b c"), (b"b_c/1.jpg", "b c")]
    assert of.left_out == {EMPTY_CLASS: ["empty"], NO_IMAGE: [str(tmp_path / "b_c" / "notes.txt")]}
    assert of.images.names[0] == str(tmp_path / "a" / "in" / "2.webp")


@pytest.mark.parametrize("named", [("x", "y", "z"), ("b", "c", "d")])
def test_names_of_folders_can_come_from_a_file(tmp_path: Path, named: tuple[str, ...]) -> None:
    """As many names as folders are in their order; where one of them is a folder's, they are looked up."""
    place = folder(tmp_path, {name: ["0.jpg"] for name in "bcd"})
    assert [name for _, name in found(labelled_set(place, classes=Classes(named)))] == list(named)


def test_imagenet_is_read_by_ids_and_by_numbers_and_in_part(tmp_path: Path) -> None:
    imagenet = Classes.named("imagenet")
    assert (len(imagenet.names), len(imagenet.ids), len(templates(["imagenet"]))) == (1000, 1000, 80)
    by_id = labelled_set(folder(tmp_path / "id", {"n01443537": ["0.jpg"], "n15075141": ["1.jpg"]}), classes=imagenet)
    assert by_id.labels.tolist() == [1, 999]
    assert len(by_id.left_out[EMPTY_CLASS]) == 998
    by_number = labelled_set(folder(tmp_path / "v2", {"1": ["0.jpg"], "999": ["1.jpg"]}), classes=imagenet)
    assert by_number.labels.tolist() == [1, 999]
    part = labelled_set(str(tmp_path / "id"), classes=imagenet, only_own_classes=True)
    assert (part.labels.tolist(), part.classes.names) == ([0, 1], (imagenet.names[1], imagenet.names[999]))
    assert part.left_out == {}


def test_tars_of_clip_benchmark_with_their_class_names(tmp_path: Path) -> None:
    of = labelled_set(web_folder(tmp_path))
    assert found(of) == [(b"x", "dog"), (b"y", "cat"), (b"x", "dog")]  # the same bytes twice are two images
    assert {reason: len(names) for reason, names in of.left_out.items()} == {NO_LABEL: 1, NO_IMAGE: 1}


def test_what_is_missing_of_clip_benchmark_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"2\.tar: cannot be read as tar"):
        labelled_set(web_folder(tmp_path / "a", shards=3))
    with pytest.raises(UsageError, match=r"0\.tar/0\.webp: its label is none of 1 classes"):
        labelled_set(web_folder(tmp_path / "b", names="cat\n"))
    (tmp_path / "b" / "test" / "nshards.txt").write_text("some")
    with pytest.raises(UnreadableError, match="'some' is no number of tars"):
        labelled_set(str(tmp_path / "b"))


STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def test_tables_as_hugging_face_writes_them(tmp_path: Path) -> None:
    images = [{"bytes": b"x", "path": "0.jpg"}, None, {"bytes": b"y", "path": "2.jpg"}, {"bytes": b"z", "path": ""}]
    info = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    schema = pa.schema([("image", STRUCT), ("label", pa.int64())], {"huggingface": json.dumps(info)})
    table = pa.table({"image": pa.array(images, STRUCT), "label": [1, 0, 0, None]}).cast(schema)
    pq.write_table(table, tmp_path / "test-00000.parquet")
    of = labelled_set(f"{tmp_path}/*.parquet")
    assert found(of) == [(b"x", "dog"), (b"y", "cat")]
    assert {reason: len(names) for reason, names in of.left_out.items()} == {NO_IMAGE: 1, NO_LABEL: 1}


def test_labels_may_be_words_or_bare_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"jpg": [b"x", b"y"], "class": ["dog", "cat"]}), tmp_path / "words.parquet")
    columns = {"image_column": "jpg", "label_column": "class"}
    assert found(labelled_set(f"{tmp_path}/words.parquet", **columns)) == [(b"x", "dog"), (b"y", "cat")]
    pq.write_table(pa.table({"jpg": [b"x", b"y"], "class": [2, 0]}), tmp_path / "numbers.parquet")
    with pytest.raises(UsageError, match="nothing says what its classes are called"):
        labelled_set(f"{tmp_path}/numbers.parquet", **columns)
    of = labelled_set(f"{tmp_path}/numbers.parquet", **columns, needs_names=False)
    assert (of.labels.tolist(), of.classes.names) == ([2, 0], ("0", "1", "2"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nothing", "nothing is at"),
        ("empty", "no folder of a class is in it"),
        ("splits", "of `save_to_disk`, which is not read"),
    ],
)
def test_a_path_without_a_set_is_refused_in_one_line(tmp_path: Path, given: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UsageError, match=said) as caught:
        labelled_set(str(tmp_path / given))
    assert "\n" not in str(caught.value)


def test_a_set_without_an_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no image with a label"):
        labelled_set(folder(tmp_path, {"a": [], "b": []}))


def test_files_of_classes_have_names_or_ids_and_names(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\n\nbig dog\n")
    (tmp_path / "ids.tsv").write_text("n2\tbig dog\nn1\tcat\n")
    assert Classes.named(str(tmp_path / "names.txt")) == Classes(("cat", "", "big dog"))
    with_ids = Classes.named(str(tmp_path / "ids.tsv"))
    assert [with_ids.number(label, "") for label in ("n1", "n2", "cat", "1", 0)] == [1, 0, 1, 1, 0]
    with pytest.raises(UsageError, match="none of 2 classes"):
        with_ids.number("n3", "file")


def test_templates_are_given_in_files_or_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("a {c}\nthe {}\n")
    assert templates(["one {}", str(tmp_path / "some.txt")]) == ["one {}", "a {}", "the {}"]
    assert templates(["imagenet"])[0] == "a bad photo of a {}."
    (tmp_path / "bad.txt").write_text("a {}\nno place\n")
    with pytest.raises(UsageError, match=r"'no place' has no \{\}"):
        templates([str(tmp_path / "bad.txt")])
    with pytest.raises(UsageError, match="no text in UTF-8"):
        templates(["a photo"])


def test_rows_of_images_are_read_in_any_rising_choice(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"image": [b"%d" % row for row in range(600)], "label": ["a"] * 600}), tmp_path / "a.parquet"
    )
    images = labelled_set(f"{tmp_path}/a.parquet").images
    chosen = np.random.default_rng(0).choice(600, 40, replace=False)
    assert list(images.read(sorted(chosen.tolist()))) == [b"%d" % row for row in sorted(chosen)]


WORDS = ["one", "red", "two", "ape", "six", "cat", "ten", "dog", "owl", "elk", "ant", "bee"]
NAMES = tuple(f"{word} of twelve" for word in WORDS)


@pytest.mark.parametrize(
    ("form", "begin", "missing"),
    [
        *((form, begin, []) for form in ("{}", "{:05d}", "class_{}", "n{:04d}") for begin in (0, 1)),
        *((form, 0, [4, 7]) for form in ("{}", "{:02d}")),
    ],
)
def test_folders_with_numbers_are_the_classes_of_these_lines(
    tmp_path: Path, form: str, begin: int, missing: list[int]
) -> None:
    there = [number for number in range(12) if number not in missing]
    place = folder(tmp_path, {form.format(number + begin): ["a.jpg"] for number in there})
    of = labelled_set(place, classes=Classes(NAMES))
    by_folder = {
        Path(name).parent.name: of.classes.names[label] for name, label in zip(of.images.names, of.labels, strict=True)
    }
    assert by_folder == {form.format(number + begin): NAMES[number] for number in there}
    assert of.left_out.get(EMPTY_CLASS, []) == [NAMES[number] for number in missing]


def test_folders_with_underscores_are_the_classes_of_that_name_in_any_order(tmp_path: Path) -> None:
    place = folder(tmp_path, {name.replace(" ", "_"): ["a.jpg"] for name in NAMES})
    of = labelled_set(place, classes=Classes(NAMES))
    assert [Path(name).parent.name.replace("_", " ") for name in of.images.names] == [
        NAMES[label] for label in of.labels
    ]


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["3", "4"], "numbers of folders, and no 0"),
        (["1", "11"], "numbers of folders, and no 0"),
        (["0", "12"], "none of 12 classes"),
        (["class_2", "class_3"], "none of 12 classes"),
    ],
)
def test_numbers_that_do_not_tell_where_they_begin_are_refused(tmp_path: Path, folders: list[str], said: str) -> None:
    place = folder(tmp_path, {name: ["a.jpg"] for name in folders})
    with pytest.raises(UsageError, match=said):
        labelled_set(place, classes=Classes(NAMES))


def test_folders_of_ids_without_a_file_of_them_are_in_the_order_of_names(tmp_path: Path) -> None:
    ids = [f"n{number:08d}" for number in range(1_440_764, 1_440_776)]
    of = labelled_set(folder(tmp_path, {name: ["a.jpg"] for name in ids}), classes=Classes(NAMES))
    assert [of.classes.names[label] for label in of.labels] == list(NAMES)


@pytest.mark.parametrize("text", ["a\n\nb\n", "a\n\nb", "a\r\n\r\nb\r\n", "a\n \t\nb\n"])
def test_an_empty_line_of_a_file_of_classes_is_a_class(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.txt").write_bytes(text.encode())
    assert Classes.named(str(tmp_path / "names.txt")).names == ("a", "", "b")
    of = labelled_set(web_folder(tmp_path / "web", names="cat\n\nbird\n"))
    assert found(of)[0] == (b"x", "")
    (tmp_path / "ids.txt").write_text("n1\ta\n\nn3\tc\n")
    assert Classes.named(str(tmp_path / "ids.txt")) == Classes(("a", "", "c"), ("n1", "", "n3"))


@pytest.mark.parametrize("ending", sorted(IMAGE_NAMES))
def test_images_of_every_ending_are_read_from_folders_and_tars(tmp_path: Path, ending: str) -> None:
    of = labelled_set(folder(tmp_path / "folder", {"a": [f"0{ending}", f"1{ending.upper()}", "._0.jpg", "2.txt"]}))
    assert [data for data, _ in found(of)] == [f"a/0{ending}".encode(), f"a/1{ending.upper()}".encode()]
    assert of.left_out == {NO_IMAGE: [str(tmp_path / "folder" / "a" / "2.txt")]}
    tar(
        tmp_path / "a.tar",
        {f"0{ending}": b"x", f"._0{ending}": b"", "PaxHeaders.1/0.jpg": b"", "0.cls": b"0", "1.txt": b"none"},
    )
    of = labelled_set(str(tmp_path / "a.tar"), needs_names=False)
    assert found(of) == [(b"x", "0")]
    assert of.left_out == {NO_IMAGE: [f"{tmp_path}/a.tar/1"]}


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_words_of_several_tables_are_the_classes_of_all(tmp_path: Path, kind: pa.DataType) -> None:
    for number, words in enumerate([["dog"], ["cat", None], ["ant", "dog"]]):
        table = pa.table({"image": [b"x"] * len(words), "label": pa.array(words).cast(kind)})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    of = labelled_set(str(tmp_path / "*.parquet"))
    assert of.classes.names == ("ant", "cat", "dog")
    assert [name for _, name in found(of)] == ["dog", "cat", "ant", "dog"]
    assert of.left_out == {NO_LABEL: [f"{tmp_path}/1.parquet#1"]}

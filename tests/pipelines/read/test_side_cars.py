"""Side-cars of img2dataset: what did not come is a candidate, and nothing else in its folder disturbs."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.errors import UsageError
from altalign.pipelines import read
from altalign.settings.curate import InputSettings
from tests.hostile.files import picture
from tests.pipelines.read.img2dataset import Asked, write
from tests.pipelines.read.pages.archives import read_all

SETTINGS = InputSettings(kind="webdataset", paths=["-"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards, of which all came of the second."""
    rows = [
        Asked("http://a/1", "one came", picture()),
        Asked("http://a/2", "two did not"),
        Asked("http://a/3", "three was too small", status="failed_to_resize"),
        Asked("http://a/4", None),
    ]
    write(tmp_path / "laion", 0, rows)
    write(tmp_path / "laion", 1, [Asked("http://a/5", "five came", picture(9))])
    return tmp_path / "laion"


def test_a_folder_stands_for_its_tars_and_side_cars(folder: Path) -> None:
    names = ["00000.parquet", "00000.tar", "00001.parquet", "00001.tar"]
    for found in ([str(folder)], [str(path) for path in sorted(folder.iterdir())]):
        paths = read.listed(found, SETTINGS)
        assert paths == [str(folder / name) for name in names]
        read.check(paths, SETTINGS)


def test_what_did_not_come_is_a_candidate_without_an_image(folder: Path) -> None:
    rows, broken, places = read_all(folder / "00000.parquet", SETTINGS)
    assert (broken, places) == ([], [])
    assert [(row["image_identity"], row["caption"], row["page_url"]) for row in rows] == [
        ("http://a/2", "two did not", None),
        ("http://a/3", "three was too small", None),
        ("http://a/4", "", None),
    ]
    assert read_all(folder / "00001.parquet", SETTINGS)[0] == []
    came = read_all(folder / "00000.tar", SETTINGS)[0]
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

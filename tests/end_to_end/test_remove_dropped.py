"""`altalign remove` reaches what was dropped: rows and pictures of every stage, by every list; looked for in bytes."""

import io
from contextlib import chdir
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from altalign.data.key import image_id
from altalign.pages.frame import data_uri
from tests.support.curations import rows_in
from tests.support.finished_runs import rows_of
from tests.support.pictures import encoded

pytestmark = pytest.mark.runs

CONFIG = """
[run]
folder = "run"
[[input]]
name = "table"
kind = "table"
paths = ["table.parquet"]
image_column = "image"
[dedup]
within_pool = "keep_one_image"
[decontaminate]
test_sets = ["tests"]
[image]
short_side_above_px = 100
"""
# each with its URL, and the stage that drops it
SMALL, LONG, KEPT, OF_TEST, COPY, SHORT = range(6)
URLS = [f"https://img.example/{name}.png" for name in ("small", "long", "copy", "test", "kept", "short")]
# of two copies the image_id decides which one stays
URLS[LONG] = ""  # in hand, without a URL
CAPTIONS = [f"a picture of {name} things" for name in ("small", "long", "kept", "tested", "copied")] + ["brevity"]


def picture(seed: int, size: tuple[int, int] = (300, 240)) -> Image.Image:
    cells = np.random.default_rng(seed).integers(0, 255, (6, 8, 3)).astype(np.uint8)
    return Image.fromarray(cells).resize(size, Image.Resampling.BICUBIC)


IMAGES = [
    encoded(picture(1, (90, 80))),
    encoded(picture(2, (900, 110))),
    encoded(picture(3, (280, 224))),
    encoded(picture(4)),
    encoded(picture(3)),
    encoded(picture(5)),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    columns = {"url": [url or None for url in URLS], "caption": CAPTIONS, "image": IMAGES}
    more = {"url": [None] * 8, "caption": [f"one more scene {n}" for n in range(8)]}
    more["image"] = [encoded(picture(9 + n)) for n in range(8)]
    pq.write_table(pa.table({name: columns[name] + more[name] for name in columns}), folder / "table.parquet")
    (folder / "tests").mkdir()
    (folder / "tests" / "t.png").write_bytes(IMAGES[OF_TEST])
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    with chdir(folder):
        assert main(["curate", "config.toml"]) == 0
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copytree(made / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def text_of(run: Path) -> str:
    """All strings and bytes of a run: of Parquet its values, since they are compressed."""
    found = list[str]()
    for path in run.rglob("*"):
        if path.suffix == ".parquet" and path.name != "removed.parquet":
            rows = pq.read_table(path).to_pylist()
            found += [repr(value) for row in rows for value in row.values()]
        elif path.is_file() and path.name != "removed.parquet":
            found.append(path.read_bytes().decode("latin-1"))
    return "\n".join(found)


def pictures_of(run: Path, caption: str) -> list[bytes]:
    rows = pq.read_table(run / "audit" / "samples.parquet").to_pylist()
    return [row["picture"] for row in rows if row["caption"] == caption and row["picture"]]


@pytest.mark.parametrize("number", [SMALL, LONG, COPY, OF_TEST, SHORT])
@pytest.mark.parametrize("by", ["keys", "image-ids", "urls", "domains", "hashes", "source-keys"])
def test_what_was_dropped_goes_with_its_pictures_by_every_list(run: Path, number: int, by: str) -> None:
    (row,) = [row for row in rows_in(run / "dropped") if row["caption"] == CAPTIONS[number]]
    shown = pictures_of(run, CAPTIONS[number])
    entry = {
        "keys": row["key"],
        "image-ids": row["image_id"],
        "urls": row["image_url"],
        "domains": "img.example",
        "hashes": sha256(IMAGES[number]).hexdigest(),
        "source-keys": row["source_key"],
    }[by]
    if (not URLS[number] and by in ("urls", "domains")) or (number == SHORT and by == "hashes"):
        return  # it has none; and the bytes of what a text rule dropped were never asked for
    assert row["found_sha256"] == (None if number == SHORT else sha256(IMAGES[number]).hexdigest())
    Path("list").write_text(entry, encoding="utf-8")
    assert main(["remove", "run", f"--{by}", "list"]) == 0
    left = text_of(run)
    for said in (CAPTIONS[number], row["key"], URLS[number] or row["image_id"], row["image_id"]):
        assert said not in left
    for thumbnail in shown:
        assert repr(thumbnail) not in left
        assert data_uri(thumbnail, "webp") not in left
    assert main(["audit", "run"]) == 0
    assert main(["audit", "run", "--digest"]) == 0


@pytest.mark.parametrize("named", [KEPT, COPY])
def test_near_reaches_the_copies_that_were_dropped_for_it(run: Path, named: int) -> None:
    rows = {row["caption"]: row for row in [*rows_of(run), *rows_in(run / "dropped")]}
    assert rows[CAPTIONS[COPY]]["kept_key"] == rows[CAPTIONS[KEPT]]["key"]
    Path("list").write_text(image_id(URLS[named]), encoding="utf-8")
    assert main(["remove", "run", "--image-ids", "list", "--near", "0.9"]) == 0
    left = text_of(run)
    for number in (KEPT, COPY):
        assert CAPTIONS[number] not in left
        assert URLS[number] not in left
    assert len(rows_of(run)) == 8


@pytest.mark.parametrize("keep_dropped", [True, False])
@pytest.mark.parametrize("near", [True, False])
def test_no_gallery_shows_what_went_nor_copies_of_it_where_these_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, near: bool, keep_dropped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    blend = Image.blend(picture(3), picture(4), 0.25)  # not near enough to the test image to be dropped
    images = [blend, picture(3), picture(3, (280, 224)), picture(3, (90, 72)), *(picture(9 + n) for n in range(8))]
    captions = [f"what is seen here {n}" for n in range(len(images))]
    urls = [f"https://img.example/{n}.png" for n in range(len(images))]
    pq.write_table(pa.table({"url": urls, "caption": captions, "image": [*map(encoded, images)]}), "table.parquet")
    Path("tests").mkdir()
    Path("tests/t.png").write_bytes(encoded(picture(3)))
    settings = CONFIG.replace('within_pool = "keep_one_image"', "").replace("[image]", "[audit]\n[image]")
    settings = settings.replace("[audit]", f"[audit]\nkeep_dropped = {str(keep_dropped).lower()}")
    Path("config.toml").write_text(settings, encoding="utf-8")
    assert main(["curate", "config.toml"]) == 0
    Path("list").write_text(urls[0 if near else 1], encoding="utf-8")
    is_there = near or keep_dropped
    assert main(["remove", "run", "--urls", "list", *(["--near", "0.8"] if near else [])]) == int(not is_there)
    galleries = {"samples": ("picture",), "near_duplicates/gallery": ("image", "test")}
    shown = [
        (row["image_id"], row[column])
        for name, columns in galleries.items()
        for row in pq.read_table(f"run/audit/{name}.parquet").to_pylist()
        for column in columns
        if row[column]
    ]

    def seen(image: Image.Image) -> Any:
        return np.asarray(image.resize((64, 52)), float).ravel()

    cosines = {of: np.corrcoef(seen(blend), seen(Image.open(io.BytesIO(it))))[0, 1] for of, it in shown}
    others = [] if near else [urls[number] for number in (0, 2, 3)]
    assert {of for of, cosine in cosines.items() if cosine > 0.8} <= {image_id(url) for url in others}
    assert not Path("run/work").exists()


def test_a_name_in_the_input_is_of_one_input_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, folder in enumerate(("camA", "camB")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "IMG_1.png").write_bytes(IMAGES[OF_TEST + number])
        (tmp_path / folder / "IMG_1.txt").write_text(f"a picture by camera {number}", encoding="utf-8")
    inputs = "".join(f'[[input]]\nkind = "folder"\npaths = ["{folder}"]\n' for folder in ("camA", "camB"))
    Path("config.toml").write_text(f'[run]\nfolder = "run"\n{inputs}', encoding="utf-8")
    assert main(["curate", "config.toml"]) == 0
    assert sorted((row["source"], row["source_key"]) for row in rows_of(Path("run"))) == [
        ("camB", "IMG_1.png"),
        ("folder", "IMG_1.png"),
    ]
    Path("list").write_text("IMG_1.png", encoding="utf-8")
    capsys.readouterr()
    assert main(["remove", "run", "--source-keys", "list"]) == 2
    said = capsys.readouterr().err
    assert "IMG_1.png is the name of 2: camB:IMG_1.png (image_id" in said
    assert "write SOURCE:NAME" in said
    assert len(rows_of(Path("run"))) == 2
    Path("list").write_text("camB:IMG_1.png", encoding="utf-8")
    assert main(["remove", "run", "--source-keys", "list"]) == 0
    (left,) = rows_of(Path("run"))
    assert left["source"] == "folder"
    assert main(["explain", "run", "--source-key", "folder:IMG_1.png"]) == 0
    # what is asked for before it is there, stays out when it comes
    Path("list").write_text(sha256(IMAGES[COPY]).hexdigest(), encoding="utf-8")
    assert main(["remove", "run", "--hashes", "list"]) == 1
    (tmp_path / "camC").mkdir()
    for number, data_of in (("1", IMAGES[COPY]), ("3", IMAGES[SHORT])):
        (tmp_path / "camC" / f"IMG_{number}.png").write_bytes(data_of)
        (tmp_path / "camC" / f"IMG_{number}.txt").write_text(f"one more picture {number}", encoding="utf-8")
    assert main(["add", "run", "--input", "camC", "--like", "folder"]) == 0
    assert {row["caption"] for row in rows_of(Path("run"))} == {"a picture by camera 0", "one more picture 3"}
    assert "one more picture 1" not in text_of(Path("run"))
    (tmp_path / "camA" / "IMG_2.png").write_bytes(IMAGES[COPY])
    capsys.readouterr()
    assert main(["add", "run", "--input", "camB", "--like", "folder"]) == 2
    assert "the folder camA, in which files came, went or changed since; put it back" in capsys.readouterr().err
    table = Path("config.toml").read_text(encoding="utf-8").replace('kind = "folder"', 'kind = "table"')
    Path("table.toml").write_text(table, encoding="utf-8")
    assert main(["curate", "table.toml", "--set", "run.folder=other"]) == 2
    said = 'camA is a folder, and kind = "table"; name its files, such as '
    assert said in capsys.readouterr().err

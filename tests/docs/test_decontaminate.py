"""The guide to decontamination.

The list of the paper's test sets is one that a run takes, from folders as they are published and conversions as shown.

Its commands run with those of the other documents, in `test_docs`.
"""

import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from altalign.pipelines.read import test_sets
from altalign.settings.curate import CurateConfig
from altalign.settings.curate import TestSet as NamedSet
from tests.docs.blocks import ROOT, blocks
from tests.support.pictures import encoded, picture

GUIDE = ROOT / "docs" / "guides" / "decontaminate.md"
LIST = ROOT / "docs" / "guides" / "test-sets-of-the-paper.toml"
CONVERT = ROOT / "examples" / "convert_test_sets.py"
CODE = {block.note: block.text for block in blocks(GUIDE) if block.kind == "python" and block.note}

# Folders as they are unpacked: files that are images, and some that lie beside them.
PUBLISHED = {
    "flickr30k": ["flickr30k/flickr30k-images/1000092795.jpg", "flickr30k/flickr30k-images/10002456.jpg"],
    "coco": ["coco/val2014/COCO_val2014_000000391895.jpg"],
    "imagenet": ["imagenet/val/ILSVRC2012_val_00000001.JPEG"],
    "imagenet-r": ["imagenet-r/n01443537/art_0.jpg"],
    "imagenet-a": ["imagenet-a/n01498041/0.000116_digital clock _ digital clock_0.865662.jpg"],
    "imagenet-v2": ["imagenetv2-matched-frequency-format-val/0/0af3f1b55de791c4144e2fb6d7dfe96dfc22d3fc.jpeg"],
    "flowers-102": ["flowers-102/jpg/image_00001.jpg"],
    "pets": ["pets/images/Abyssinian_1.jpg"],
    "cars": ["stanford-cars/cars_test/00001.jpg"],
    "food-101": ["food-101/images/apple_pie/1005649.jpg"],
    "caltech-101": ["caltech-101/101_ObjectCategories/accordion/image_0001.jpg"],
    "dtd": ["dtd/images/banded/banded_0002.jpg"],
    "sun397": ["SUN397/a/abbey/sun_aaalbzqrimafwbiv.jpg"],
    "eurosat": ["eurosat/2750/AnnualCrop/AnnualCrop_1.jpg"],
    "resisc45": ["NWPU-RESISC45/airplane/airplane_001.jpg"],
    "diabetic-retinopathy": ["diabetic-retinopathy/test/10_left.jpeg"],
    "clevr": ["CLEVR_v1.0/images/val/CLEVR_val_000000.png"],
    "kitti": ["kitti/training/image_2/000000.png"],
    "dmlab": ["dmlab/000000"],
}
BESIDE = [
    "imagenet-r/README.txt",
    "pets/images/Abyssinian_100.mat",
    "dtd/images/banded/.directory",
    "SUN397/ClassName_01.txt",
]

RNG = np.random.default_rng(4)
ARRAYS = {
    "cifar": RNG.integers(0, 256, (3, 32, 32, 3), np.uint8),
    "svhn": RNG.integers(0, 256, (3, 32, 32, 3), np.uint8),
    "mnist": RNG.integers(0, 256, (3, 28, 28), np.uint8),
    "small-norb": RNG.integers(0, 256, (3, 2, 96, 96), np.uint8),
    "dsprites": RNG.integers(0, 2, (3, 64, 64), np.uint8),
    "patch-camelyon": RNG.integers(0, 256, (3, 96, 96, 3), np.uint8),
}


def idx(path: Path, array: np.ndarray, *, head: bytes) -> None:
    path.write_bytes(gzip.compress(head + array.tobytes()))


def write_mat(path: Path, array: np.ndarray) -> None:
    scipy_io = pytest.importorskip("scipy.io", reason="scipy writes the file of SVHN")
    scipy_io.savemat(path, {"X": array.transpose(1, 2, 3, 0)})


def write_hdf5(path: Path, array: np.ndarray) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py, which the conversion of Patch Camelyon needs, is not installed")
    with h5py.File(path, "w") as file:
        file["x"] = array


# Of each format: the file as its authors have it, how it is written, and where the conversion puts the images.
SOURCES: dict[str, tuple[str, Callable[[Path, np.ndarray], object], str]] = {
    "cifar": (
        "cifar-100-python/test",
        lambda path, array: path.write_bytes(
            pickle.dumps({b"data": array.transpose(0, 3, 1, 2).reshape(len(array), -1), b"fine_labels": []})
        ),
        "cifar-100",
    ),
    "svhn": ("test_32x32.mat", write_mat, "svhn"),
    "mnist": (
        "t10k-images-idx3-ubyte.gz",
        lambda path, array: idx(path, array, head=np.array([2051, *array.shape], ">i4").tobytes()),
        "mnist",
    ),
    "small-norb": (
        "smallnorb-5x01235x9x18x6x2x96x96-testing-dat.mat.gz",
        lambda path, array: idx(path, array, head=np.array([0x1E3D4C55, 4, *array.shape], "<i4").tobytes()),
        "small-norb",
    ),
    "dsprites": (
        "dsprites_ndarray_co1sh3sc6ori40x32y32_64x64.npz",
        lambda path, array: np.savez(path, imgs=array),
        "dsprites",
    ),
    "patch-camelyon": ("camelyonpatch_level_2_split_test_x.h5", write_hdf5, "patch-camelyon"),
}


def named_sets() -> list[NamedSet]:
    values = tomllib.loads(LIST.read_text(encoding="utf-8"))
    config = CurateConfig.from_values({"input": {"kind": "table", "paths": ["pairs.csv"]}, **values}, where=LIST.name)
    return config.decontaminate.named_sets


def run(folder: Path, *words: str) -> None:
    ran = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, env=os.environ
    )
    assert ran.returncode == 0, ran.stderr


def converted(kind: str, folder: Path) -> None:
    """Write the source of a conversion, and run the guide's command on it."""
    name, write, target = SOURCES[kind]
    words = [kind, name, f"test-sets/{target}.parquet"]
    assert f"python examples/convert_test_sets.py {' '.join(words)}\n" in GUIDE.read_text(encoding="utf-8")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write(folder / name, ARRAYS[kind])
    run(folder, str(CONVERT), *words)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_conversion_keeps_every_pixel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    converted(kind, tmp_path)
    monkeypatch.chdir(tmp_path)
    expected = {"small-norb": ARRAYS[kind][:, 0], "dsprites": ARRAYS[kind] * 255}.get(kind, ARRAYS[kind])
    parts = test_sets.parts(NamedSet(name=kind, path=f"test-sets/{SOURCES[kind][2]}.parquet"))
    images = [np.asarray(Image.open(io.BytesIO(data))) for part in parts for _, data in test_sets.images(part)]
    assert np.array_equal(np.stack(images), expected)


def test_every_conversion_of_the_guide_is_tested() -> None:
    assert set(CODE) == {"not run here", "a part of a folder"}
    commands = re.findall(r"convert_test_sets\.py (\S+)", GUIDE.read_text(encoding="utf-8"))
    assert sorted(commands) == sorted(SOURCES)


def test_the_list_finds_every_set_as_it_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in PUBLISHED.values():
        for name in names:
            path = tmp_path / "test-sets" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(picture(40, 30), "png" if name.endswith("png") else "jpeg"))
    for name in BESIDE:
        (tmp_path / "test-sets" / name).write_bytes(b"no image")
    made = {kind: target for kind, (_, _, target) in SOURCES.items()}
    for kind in ("cifar", "small-norb", "dsprites", "svhn"):
        converted(kind, tmp_path)
    # made of HDF5, which few can write
    (tmp_path / "test-sets" / "patch-camelyon.parquet").hardlink_to(tmp_path / "test-sets" / "cifar-100.parquet")
    monkeypatch.chdir(tmp_path)
    found = {
        each.name: [name for part in test_sets.parts(each) for name, _ in test_sets.images(part)]
        for each in named_sets()
    }
    assert set(found) == {*PUBLISHED, *made.values()} - {"mnist"}
    rows = {name: [f"{name}.parquet#{row}" for row in range(3)] for name in made.values()}
    assert {name: [Path(image).name for image in images] for name, images in found.items()} == {
        name: [Path(path).name for path in PUBLISHED[name]] if name in PUBLISHED else rows[name] for name in found
    }


def test_the_guide_converts_the_sets_that_are_made() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    conversions = text[text.index("### What has to be converted") :]
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if found := re.search(r'name = "(?P<name>[^"]+)", path = "(?P<path>[^"]+)"', line):
            assert ("# made" in line) == bool(re.search(rf'[ "]{re.escape(found["path"])}["\n]', conversions)), found[
                "path"
            ]


def test_the_list_covers_the_paper() -> None:
    """Sections 5.1 to 5.3 and 7, and the 19 tasks of VTAB."""
    parts = re.split(r"\n    # (?!made)", LIST.read_text(encoding="utf-8"))
    names = {each.name for each in named_sets()}
    retrieval = {"flickr30k", "coco"}
    classification = {"imagenet", "imagenet-r", "imagenet-a", "imagenet-v2"}
    assert retrieval | classification | {"flowers-102", "pets", "cars", "food-101"} <= names
    assert all(words in parts[1] for words in ("Multi30K", "Crisscrossed Captions (CxC)"))
    tasks = "".join(part for part in parts if part.startswith("VTAB"))
    assert tasks.count("{ name") + tasks.count("two tasks") + sum(part.count("VTAB too") for part in parts) == 19


def test_a_part_of_a_folder_is_a_folder_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "test-sets" / "flickr30k" / "flickr30k-images"
    folder.mkdir(parents=True)
    splits = {"1.jpg": "train", "2.jpg": "test", "3.jpg": "val", "4.jpg": "test"}
    for name in splits:
        (folder / name).write_bytes(encoded(picture(10 + int(name[0]), 9), "jpeg"))
    (tmp_path / "dataset_flickr30k.json").write_text(
        json.dumps({"images": [{"filename": name, "split": split} for name, split in splits.items()]})
    )
    run(tmp_path, "-c", CODE["a part of a folder"])
    monkeypatch.chdir(tmp_path)
    (part,) = test_sets.parts(NamedSet(name="flickr", path="test-sets/flickr30k-test"))
    assert list(test_sets.images(part)) == [(name, (folder / name).read_bytes()) for name in ("2.jpg", "4.jpg")]


def test_the_toml_beside_a_model_is_one_that_is_read(tmp_path: Path) -> None:
    from altalign.models.model import EmbeddingInput

    (block,) = [block for block in blocks(GUIDE) if block.kind == "toml" and "input_size" in block.text]
    (tmp_path / "model.toml").write_text(block.text)
    read = EmbeddingInput.load(tmp_path / "model.toml")
    assert (read.height_and_width, read.output_name, read.scale) == ((224, 224), "embedding", pytest.approx(1 / 255))
    assert set(tomllib.loads(block.text)) == set(EmbeddingInput.model_fields)


def test_the_forms_of_test_sets_are_settings() -> None:
    (block,) = [block for block in blocks(GUIDE) if block.kind == "toml" and "test_sets" in block.text]
    config = CurateConfig.from_values(
        {"input": {"kind": "table", "paths": ["pairs.csv"]}, **tomllib.loads(block.text)}, where="guide"
    )
    assert [(each.name, each.image_column) for each in config.decontaminate.named_sets] == [
        ("imagenet-a", "image"),
        ("coco", "image"),
        ("food", "image"),
        ("cifar", "img"),
    ]

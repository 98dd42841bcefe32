"""A calibration as files: what is written is read, and what is none is refused in one line."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from altalign import storage
from altalign.dedup import embed
from altalign.errors import UnreadableError, UsageError
from altalign.pipelines.images import calibration_files, embedders
from altalign.pipelines.images.calibration_files import Calibration
from altalign.storage import arrays


def calibration(*, is_mapped: bool = True) -> Calibration:
    mapped = (
        embed.Map(np.arange(embed.COEFFICIENTS, dtype=np.int32), np.eye(8, embed.COEFFICIENTS, dtype=np.int32))
        if is_mapped
        else None
    )
    return Calibration(
        "dct" if is_mapped else "phash",
        0.93,
        mapped,
        np.full((3, 8 if is_mapped else embedders.PHASH_BITS), 7, np.int16),
    )


@pytest.mark.parametrize("is_mapped", [True, False])
def test_what_is_written_is_read(tmp_path: Path, *, is_mapped: bool) -> None:
    whole = calibration(is_mapped=is_mapped)
    calibration_files.save(str(tmp_path / "c"), whole, {"training_images": 340})
    again = calibration_files.named(str(tmp_path / "c"), embedders.load(whole.embedder))
    assert (again.embedder, again.similarity_above) == (whole.embedder, 0.93)
    assert (again.centroids == whole.centroids).all()
    features = np.random.default_rng(1).integers(-900, 900, (5, embed.COEFFICIENTS), np.int16)
    assert (again.vectors(features) == whole.vectors(features)).all()
    assert storage.read_json(str(tmp_path / "c" / calibration_files.FILE))["training_images"] == 340
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == sorted(
        Path(path).name for path in calibration_files.files_of("c") if is_mapped or "map" not in path
    )


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def rewrite(folder: Path, **facts: object) -> None:
    path = str(folder / calibration_files.FILE)
    storage.write_json(path, {**storage.read_json(path), **facts})


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no JSON": (
        lambda folder: (folder / "calibration.json").write_text("{", encoding="utf-8"),
        "calibration.json: not JSON",
    ),
    "another version": (
        lambda folder: storage.write_json(str(folder / "calibration.json"), {"version": 99}),
        "no calibration of this version",
    ),
    "a cut map": (lambda folder: cut(folder / "map_matrix.npy"), "map_matrix.npy: not a whole NumPy array"),
    "no mean": (lambda folder: (folder / "map_mean.npy").unlink(), "map_mean.npy"),
    "a map of floats": (
        lambda folder: arrays.save(str(folder / "map_mean.npy"), np.zeros(embed.COEFFICIENTS)),
        "its map or its centroids are none: float64 of shape",
    ),
    "other dimensions": (
        lambda folder: arrays.save(str(folder / "centroids.npy"), np.zeros((3, 9), np.int16)),
        "its map or its centroids are none: no centroids: ",
    ),
    "no centroids": (
        lambda folder: arrays.save(str(folder / "centroids.npy"), np.zeros((0, 8), np.int16)),
        "its map or its centroids are none: no centroids: ",
    ),
    "centroids too long": (
        lambda folder: arrays.save(str(folder / "centroids.npy"), np.full((3, 8), 32_767, np.int16)),
        "its map or its centroids are none: a norm of 92,679",
    ),
    "a threshold in words": (
        lambda folder: rewrite(folder, similarity_above="high"),
        "similarity_above = 'high', which is no cosine",
    ),
    "a threshold above 1": (
        lambda folder: rewrite(folder, similarity_above=2),
        "similarity_above = 2, which is no cosine",
    ),
    "no threshold": (
        lambda folder: rewrite(folder, similarity_above=float("nan")),
        "similarity_above = nan, which is no cosine",
    ),
    "without its map": (lambda folder: rewrite(folder, is_mapped=False), 'do not fit embedder = "dct"'),
    "centroids of floats": (
        lambda folder: arrays.save(str(folder / "centroids.npy"), np.zeros((3, 8))),
        "its map or its centroids are none: no centroids: ",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_calibration_that_is_damaged_is_refused_with_its_file(tmp_path: Path, name: str) -> None:
    damage, said = DAMAGES[name]
    calibration_files.save(str(tmp_path), calibration(), {})
    damage(tmp_path)
    with pytest.raises(UsageError, match=r"\[decontaminate\] calibration = .*cannot be used: ") as error:
        calibration_files.named(str(tmp_path), embedders.load("dct"))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_calibration_of_another_embedder_or_of_none_is_refused(tmp_path: Path) -> None:
    calibration_files.save(str(tmp_path / "c"), calibration(), {})
    with pytest.raises(UsageError, match='made with embedder = "dct", here it is "phash"'):
        calibration_files.named(str(tmp_path / "c"), embedders.load("phash"))
    for name, value in {"a map": calibration(), "centroids of other dimensions": calibration(is_mapped=False)}.items():
        folder = str(tmp_path / name)
        calibration_files.save(
            folder, dataclasses.replace(value, embedder="phash", centroids=np.full((3, 8), 7, np.int16)), {}
        )
        with pytest.raises(UsageError, match='do not fit embedder = "phash"'):
            calibration_files.named(folder, embedders.load("phash"))
    with pytest.raises(UsageError, match=r"no calibration\.json is there; give a folder"):
        calibration_files.named(str(tmp_path / "none"), embedders.load("dct"))


def test_an_array_comes_back_read_or_mapped_and_a_cut_one_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    whole = np.arange(12, dtype=np.int16).reshape(3, 4)[:, ::2]
    arrays.save(path, whole)
    assert (arrays.read(path) == whole).all()
    assert isinstance(arrays.mapped(path), np.memmap)
    assert (arrays.mapped(path) == whole).all()
    cut(Path(path))
    for opened in (arrays.read, arrays.mapped):
        with pytest.raises(UnreadableError, match=r"a\.npy: not a whole NumPy array"):
            opened(path)

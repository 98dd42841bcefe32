import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.data import shards
from altalign.errors import UnreadableError
from altalign.pipelines.derive import copy_shards
from altalign.pipelines.derive.copy_shards import Part
from altalign.pipelines.run.shard_files import Slice, filled, write_shard


def row(number: int, size: int) -> dict[str, object]:
    texts = {"image_url": None, "caption": f"caption {number} é", "page_url": "https://a.example/", "source": "table"}
    names = {"key": f"{number:032x}", "image_id": f"{number // 3:032x}", "source_key": f"t.csv#{number}", "extra": None}
    names |= {"preferences": None}
    hashes = dict.fromkeys(("sha256", "found_sha256"), "0" * 64)
    sizes = {"width": 300, "height": 201, "format": "jpeg", "bytes": size, "words": 3}
    return {**texts, **names, **hashes, **sizes}


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, list[bytes]]:
    """Two shards of 40 samples, whose images have between 1 byte and 70 kB."""
    random = np.random.default_rng(3)
    images = [random.bytes(int(size)) for size in random.integers(1, 70_000, 80)]
    for shard in range(2):
        numbers = range(40 * shard, 40 * shard + 40)
        write_shard(str(tmp_path), f"{shard:05d}", ((row(n, len(images[n])), images[n]) for n in numbers))
    return str(tmp_path), images


def test_a_copied_shard_has_the_bytes_of_one_written_of_the_same_samples(
    written: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    folder, images = written
    of_first, of_second = np.array([0, 1, 2, 7, 38, 39]), np.array([5])
    parts = [Part(folder, "00000", of_first), Part(folder, "00001", of_second)]
    copied = copy_shards.copied(str(tmp_path / "copied"), "00000", [parts])
    numbers = [*of_first.tolist(), 45]
    plain = write_shard(str(tmp_path / "plain"), "00000", ((row(n, len(images[n])), images[n]) for n in numbers))
    assert copied == plain
    found = list(shards.samples(io.BytesIO((tmp_path / "copied" / "00000.tar").read_bytes())))
    assert [sample.image for sample in found] == [images[n] for n in numbers]


def test_a_tar_that_is_cut_is_named(written: tuple[str, list[bytes]]) -> None:
    folder, _ = written
    tar = Path(folder, "00000.tar")
    tar.write_bytes(tar.read_bytes()[:50_000])
    with pytest.raises(UnreadableError, match=r"00000\.tar: it ends .* bytes before a sample does"):
        copy_shards.copied(f"{folder}/copied", "00000", [[Part(folder, "00000", np.arange(40))]])


def test_samples_of_several_sequences_come_in_one_order(written: tuple[str, list[bytes]], tmp_path: Path) -> None:
    folder, images = written
    for name, numbers in (("odd", range(1, 40, 2)), ("even", range(0, 40, 2))):
        write_shard(folder, name, ((row(n, len(images[n])), images[n]) for n in numbers))
    parts = [[Part(folder, name, np.arange(20))] for name in ("odd", "even")]
    copied = copy_shards.copied(str(tmp_path / "copied"), "00000", parts)
    plain = write_shard(str(tmp_path / "plain"), "00000", ((row(n, len(images[n])), images[n]) for n in range(40)))
    assert copied == plain


def test_a_tar_of_another_side_car_is_named(written: tuple[str, list[bytes]]) -> None:
    folder, _ = written
    Path(folder, "00001.tar").rename(Path(folder, "00000.tar"))
    with pytest.raises(UnreadableError, match=r"00000\.tar: .* (it ends|does not have this sample)"):
        copy_shards.copied(f"{folder}/copied", "00000", [[Part(folder, "00000", np.arange(40))]])


@given(st.lists(st.tuples(st.text("abc", min_size=1), st.integers(0, 20))), st.integers(1, 9))
def test_shards_are_filled_in_order(chosen: list[tuple[str, int]], per_shard: int) -> None:
    one_by_one = [(name, number) for name, rows in chosen for number in range(rows)]
    shards = filled(chosen, per_shard)
    found = [[(name, number) for name, begin, end in parts for number in range(begin, end)] for parts in shards]
    assert found == [one_by_one[begin : begin + per_shard] for begin in range(0, len(one_by_one), per_shard)]
    assert all(isinstance(part, Slice) and part.begin < part.end for parts in shards for part in parts)

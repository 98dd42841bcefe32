from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import numpy as np
import numpy.typing as npt
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.errors import UnreadableError
from altalign.pipelines.engine import spilled_groups
from altalign.pipelines.engine.spilled_groups import (
    OFFSET,
    Element,
    Groups,
    MergePartitions,
    Spilled,
    SpillWriter,
    by_part,
    elements,
    listed,
    parted,
)
from altalign.pipelines.run.units import Marks, Run
from tests.support.runs import run_of

PARTITIONS, KINDS = 128, 3
GROUPS = Groups(PARTITIONS, kinds=KINDS, at_most=64)  # of two partitions each
Unit = list[tuple[int, bytes]]  # (bucket, slice) in order of writing

Nothing = namedtuple("Nothing", "")


def spilled(folder: Path, order: int, unit: Unit, groups: Groups = GROUPS) -> list[int]:
    with storage.write(str(folder / f"{order}.spill")) as file:
        writer = SpillWriter(file, groups)
        for bucket, data in unit:
            writer.add(bucket, np.frombuffer(data, np.uint8))
        return writer.finish()


def named(folder: Path, units: dict[int, Unit]) -> list[bytes]:
    values = list[bytes]()
    for order, unit in units.items():
        path = str(folder / f"{order}.spill")
        values += [value for _, value in elements(path, order, path, spilled(folder, order, unit))]
    return values


def read_all(values: list[bytes]) -> dict[int, bytes]:
    """Bytes of each bucket, read group by group, a partition at a time."""
    content = {}
    for group in range(GROUPS.count):
        gathered = Spilled(lambda: listed(values), GROUPS, group)
        for partition in range(group * GROUPS.size, (group + 1) * GROUPS.size):
            buckets = [partition * KINDS + kind for kind in range(KINDS)]
            for bucket, array in zip(buckets, gathered.arrays(buckets, np.uint8), strict=True):
                assert array.tobytes() == b"".join(data for _, data in gathered.slices([bucket]))
                content[bucket] = array.tobytes()
    return content


units = st.lists(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 7, 191, 192, 383]), st.binary(max_size=20)), max_size=8), max_size=5
)


@given(units, st.randoms(use_true_random=False))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_every_bucket_gets_its_bytes_in_the_order_of_units(
    tmp_path_factory: pytest.TempPathFactory, units: list[Unit], random
) -> None:
    folder = tmp_path_factory.mktemp("spill")
    plain = {
        bucket: b"".join(data for unit in units for b, data in unit if b == bucket)
        for bucket in range(PARTITIONS * KINDS)
    }
    order = list(range(len(units)))
    random.shuffle(order)
    values = named(folder, {number: units[number] for number in order})
    random.shuffle(values)  # an engine groups in any order
    assert read_all(values) == plain


def test_there_are_few_groups_and_each_partition_is_in_one() -> None:
    assert [Groups(partitions).count for partitions in (8, 64, 512, 4096)] == [8, 64, 512, 512]
    assert Groups(256).size * Groups(256).count == 256


def test_units_come_in_order_beyond_one_byte_and_names_may_be_of_any_script(tmp_path: Path) -> None:
    folder = tmp_path / "Ünïcode 漢字"
    values = named(folder, {order: [(1, str(order).encode())] for order in (300, 2, 65_536, 0)})
    gathered = Spilled(lambda: listed(values), GROUPS, 0)
    assert list(gathered.slices([1])) == [
        (1, b"0"),
        (1, b"2"),
        (1, b"300"),
        (1, b"65536"),
    ]


def test_a_unit_that_spilled_nothing_has_no_elements(tmp_path: Path) -> None:
    assert named(tmp_path, {0: [], 1: [(0, b"")]}) == []
    assert [array.tolist() for array in Spilled(lambda: listed([]), GROUPS, 0).arrays([0, 1])] == [[], []]


@pytest.mark.parametrize("left", [0, 10, 40])
def test_a_file_that_was_cut_is_an_error_with_its_name(tmp_path: Path, left: int) -> None:
    values = named(tmp_path, {0: [(0, b"x" * 24), (5, b"y" * 24)]})
    path = tmp_path / "0.spill"
    data = path.read_bytes()
    path.write_bytes(data[:left])
    with pytest.raises(UnreadableError, match=f"^{path}: cut short$"):
        Spilled(lambda: listed(values), GROUPS, 0).arrays([0, 5])
    known = Spilled(lambda: listed(values), GROUPS, 0)
    path.write_bytes(data)
    assert known.size([0, 5]) == 48
    path.write_bytes(data[:left])
    with pytest.raises(UnreadableError, match=f"^{path}: cut short$"):
        known.arrays([0, 5])


def test_every_partition_is_merged_of_several_collections_also_an_empty_one(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    groups, path = Groups(4), str(tmp_path / "0.spill")

    def merge(run: Run, partition: int, gathered: Spilled) -> Nothing:
        slices = [[bucket, data.decode()] for bucket, data in gathered.slices([partition])]
        storage.write_json(run.path(f"{partition}.json"), {"slices": slices})
        return Nothing()

    some: list[Element] = list(elements(path, 0, path, spilled(tmp_path, 0, [(2, b"two"), (0, b"zero")], groups)))
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        elsewhere = pipeline | "Nothing" >> beam.Create([]).with_output_types(tuple[int, bytes])
        spills = pipeline | "Some" >> beam.Create(some).with_output_types(tuple[int, bytes])
        merged = (spills, elsewhere) | MergePartitions(run, Marks("merged", Nothing), groups, merge)
        assert_that(merged, equal_to([0, 1, 2, 3]))
    slices = [storage.read_json(run.path(f"{partition}.json"))["slices"] for partition in range(4)]
    assert slices == [[[0, "zero"]], [], [[2, "two"]], []]


@pytest.mark.parametrize("held_bytes", [1, 5, 1 << 20])
def test_what_is_held_before_it_is_written_changes_nothing_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr(spilled_groups, "HELD_BYTES", held_bytes)
    unit = [(5, b"aa"), (0, b"b"), (5, b"cc"), (1, b"ddd"), (0, b"e"), (5, b"f")]
    content = read_all(named(tmp_path, {0: unit}))
    assert {bucket: data for bucket, data in content.items() if data} == {0: b"be", 1: b"ddd", 5: b"aaccf"}


@pytest.mark.parametrize("most", [1, 100, 1 << 20])
def test_the_parts_of_a_partition_have_its_rows_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(spilled_groups, "MERGED_BYTES", most)
    numbers = [number * 977 % 4_096 for number in range(90)]
    units = {
        order: [(kind, np.array([each], OFFSET).tobytes()) for kind in range(KINDS) for each in numbers[order::3]]
        for order in range(3)
    }
    gathered = Spilled(lambda: listed(named(tmp_path, units)), GROUPS, 0)

    def cut(kind: int, data: bytes, parts: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        assert kind in range(KINDS)
        rows = np.frombuffer(data, OFFSET)
        yield from by_part(rows, rows * parts // 4_096)

    with parted(gathered, [0, 1, 2], cut) as parts:
        found = [[each.tolist() for each in part.arrays(buckets, OFFSET)] for part, buckets in parts]
    whole = numbers[0::3] + numbers[1::3] + numbers[2::3]
    assert len(found) == {1: 4_096, 100: 128, 1 << 20: 1}[most]
    share = 4_096 // len(found)
    assert found == [[[n for n in whole if n // share == part]] * KINDS for part in range(len(found))]

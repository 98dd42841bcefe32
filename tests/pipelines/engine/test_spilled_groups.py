from collections import defaultdict, namedtuple
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from altalign.errors import UnreadableError
from altalign.pipelines.engine import spilled_groups
from altalign.pipelines.engine.spilled_groups import (
    Element,
    Groups,
    MergePartitions,
    Spilled,
    SpillWriter,
    elements,
    slices_of,
)
from altalign.pipelines.run.units import Marks, Run
from tests.support.runs import run_of

PARTITIONS, KINDS = 128, 3
Unit = list[tuple[int, bytes]]  # (bucket, slice) in order of writing

Nothing = namedtuple("Nothing", "")


def spilled(folder: Path, order: int, unit: Unit) -> list[int]:
    with storage.write(str(folder / f"{order}.spill")) as file:
        writer = SpillWriter(file)
        for bucket, data in unit:
            writer.add(bucket, np.frombuffer(data, np.uint8))
        return writer.finish()


def grouped(folder: Path, units: dict[int, Unit]) -> dict[int, list[bytes]]:
    values: dict[int, list[bytes]] = defaultdict(list)
    for order, unit in units.items():
        path = str(folder / f"{order}.spill")
        for group, value in elements(path, order, path, spilled(folder, order, unit), Groups(PARTITIONS, kinds=KINDS)):
            values[group].append(value)
    return values


def read_all(values: dict[int, list[bytes]]) -> dict[int, bytes]:
    """Bytes of each bucket, read group by group, a partition at a time."""
    groups, content = Groups(PARTITIONS, kinds=KINDS), {}
    for group in range(groups.count):
        gathered = Spilled(values.get(group, []))
        for partition in range(group * groups.size, (group + 1) * groups.size):
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
    values = grouped(folder, {number: units[number] for number in order})
    for value in values.values():
        random.shuffle(value)  # an engine groups in any order
    assert read_all(values) == plain


def test_there_are_few_groups_and_each_partition_is_in_one() -> None:
    assert [Groups(partitions).count for partitions in (8, 64, 128, 4096)] == [8, 64, 64, 64]
    assert Groups(256).size * Groups(256).count == 256


def test_units_come_in_order_beyond_one_byte_and_names_may_be_of_any_script(tmp_path: Path) -> None:
    folder = tmp_path / "Ünïcode 漢字"
    values = grouped(folder, {order: [(1, str(order).encode())] for order in (300, 2, 65_536, 0)})
    assert list(Spilled(values[0]).slices([1])) == [(1, b"0"), (1, b"2"), (1, b"300"), (1, b"65536")]


def test_a_unit_that_spilled_nothing_has_no_elements(tmp_path: Path) -> None:
    assert grouped(tmp_path, {0: [], 1: [(0, b"")]}) == {}
    assert [array.tolist() for array in Spilled([]).arrays([0, 1])] == [[], []]


@pytest.mark.parametrize("left", [0, 10, 40])
def test_a_file_that_was_cut_is_an_error_with_its_name(tmp_path: Path, left: int) -> None:
    where = spilled(tmp_path, 0, [(0, b"x" * 20), (200, b"y" * 20)])
    path = tmp_path / "0.spill"
    values = [value for _, value in elements(str(path), 0, str(path), where, Groups(PARTITIONS, kinds=KINDS))]
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(UnreadableError, match=f"^{path}: cut short$"):
        slices_of(str(path), where)
    with pytest.raises(UnreadableError, match=f"^{path}: cut short$"):
        Spilled(values).arrays([0, 200])


def test_every_partition_is_merged_of_several_collections_also_an_empty_one(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    groups, path = Groups(4), str(tmp_path / "0.spill")

    def merge(run: Run, partition: int, gathered: Spilled) -> Nothing:
        slices = [[bucket, data.decode()] for bucket, data in gathered.slices([partition])]
        storage.write_json(run.path(f"{partition}.json"), {"slices": slices})
        return Nothing()

    some: list[Element] = list(elements(path, 0, path, spilled(tmp_path, 0, [(2, b"two"), (0, b"zero")]), groups))
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
    content = read_all(grouped(tmp_path, {0: unit}))
    assert {bucket: data for bucket, data in content.items() if data} == {0: b"be", 1: b"ddd", 5: b"aaccf"}

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import storage
from pipelines.shuffle import Element, Mode, SpillWriter, elements, slices

Unit = list[tuple[int, bytes]]  # (partition, slice) in order of writing


def spilled(folder: Path, order: int, unit: Unit) -> dict[str, list[tuple[int, int]]]:
    with storage.write(str(folder / f"{order}.spill")) as file:
        writer = SpillWriter(file)
        for partition, data in unit:
            writer.add(partition, memoryview(data))
    return writer.places()


def grouped(folder: Path, units: list[Unit], mode: Mode, order: list[int]) -> dict[int, list[bytes]]:
    found: list[Element] = []
    for number in order:
        found += elements(str(folder / f"{number}.spill"), number, spilled(folder, number, units[number]), mode)
    return {partition: [value for p, value in found if p == partition] for partition, _ in found}


def plain(units: list[Unit]) -> dict[int, bytes]:
    return {p: b"".join(data for unit in units for partition, data in unit if partition == p) for unit in units for p, data in unit if data}


units = st.lists(st.lists(st.tuples(st.sampled_from([0, 1, 7, 4095]), st.binary(max_size=20)), max_size=8), max_size=5)


@given(units, st.randoms(use_true_random=False))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_both_modes_give_the_same_bytes_in_the_order_of_units(tmp_path_factory: pytest.TempPathFactory, units: list[Unit], random) -> None:
    folder = tmp_path_factory.mktemp("spill")
    order = list(range(len(units)))
    random.shuffle(order)
    for mode in ("files", "beam"):
        found = grouped(folder, units, mode, order)
        for values in found.values():
            random.shuffle(values)  # an engine groups in any order
        assert {partition: b"".join(slices(values)) for partition, values in found.items()} == plain(units)


def test_a_slice_that_stands_alone_in_its_unit_and_partition_comes_back_whole_in_both_modes(tmp_path: Path) -> None:
    parts: list[Unit] = [[(3, b"first"), (4, b"other")], [(3, b"second")], [(4, b"third")]]
    for mode in ("files", "beam"):
        found = grouped(tmp_path, parts, mode, [2, 0, 1])
        assert {partition: list(slices(values)) for partition, values in found.items()} == {3: [b"first", b"second"], 4: [b"other", b"third"]}


def test_places_survive_json_in_the_order_of_partitions(tmp_path: Path) -> None:
    places = spilled(tmp_path, 0, [(10, b"abc"), (9, b"de"), (10, b""), (10, b"f")])
    assert list(places) == ["9", "10"]
    assert places == {"9": [(3, 2)], "10": [(0, 3), (5, 1)]}
    storage.write_json(str(tmp_path / "facts.json"), places)
    read = storage.read_json(str(tmp_path / "facts.json"))
    path = str(tmp_path / "0.spill")
    for mode in ("files", "beam"):
        assert list(elements(path, 0, read, mode)) == list(elements(path, 0, places, mode))


def test_units_come_in_order_beyond_one_byte_and_names_may_be_of_any_script(tmp_path: Path) -> None:
    orders = [300, 2, 65_536, 0]
    for mode in ("files", "beam"):
        values = []
        for order in orders:
            folder = tmp_path / "Ünïcode 漢字"
            places = spilled(folder, order, [(1, str(order).encode())])
            values += [value for _, value in elements(str(folder / f"{order}.spill"), order, places, mode)]
        assert list(slices(values)) == [b"0", b"2", b"300", b"65536"]


def test_a_unit_that_spilled_nothing_has_no_elements(tmp_path: Path) -> None:
    assert list(elements(str(tmp_path / "0.spill"), 0, spilled(tmp_path, 0, []), "files")) == []
    assert list(slices([])) == []

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.errors import UnreadableError
from altalign.pipelines.run.shard_files import Places, merged


def places(numbers: list[int], of_image: int = 1) -> Places:
    """Places of pairs that rise with their numbers, so many of each image."""
    return np.array([f"{number // of_image:032x}{number:032x}" for number in numbers], "S64")


@given(
    owners=st.lists(st.integers(0, 3), max_size=60),
    sizes=st.lists(st.integers(1, 7), min_size=4, max_size=4),
    per_unit=st.integers(1, 9),
    of_image=st.integers(0, 4),
)
def test_sequences_are_cut_as_if_all_were_sorted(
    owners: list[int], sizes: list[int], per_unit: int, of_image: int
) -> None:
    """Place i of all is of sequence `owners[i]`, whose things have `sizes` rows, some of them none.

    With `of_image` above 0 so many pairs are one image, and units are of whole images.
    """
    of = [[number for number, owner in enumerate(owners) if owner == sequence] for sequence in range(4)]
    things = [
        [(f"{sequence}-{begin}", len(numbers[begin : begin + size])) for begin in range(0, len(numbers) + size, size)]
        for sequence, (numbers, size) in enumerate(zip(of, sizes, strict=True))
    ]

    def read(name: str) -> Places:
        sequence, begin = map(int, name.split("-"))
        return places(of[sequence][begin : begin + sizes[sequence]], max(of_image, 1))

    units = merged("here", things, read, per_unit, whole=of_image > 0)
    per_unit *= max(of_image, 1)
    found = [
        sorted(
            of[int(name.split("-")[0])][int(name.split("-")[1]) + row]
            for name, begin, end in unit
            for row in range(begin, end)
        )
        for unit in units
    ]
    assert found == [
        list(range(begin, min(begin + per_unit, len(owners)))) for begin in range(0, len(owners), per_unit)
    ]


@pytest.mark.parametrize("blocks", [[[1, 3, 2]], [[1, 2], [0]]])
def test_places_that_do_not_rise_are_refused(blocks: list[list[int]]) -> None:
    def read(name: str) -> Places:
        return places(blocks[int(name)])

    with pytest.raises(UnreadableError, match="here: samples are not in the order"):
        merged("here", [[(str(number), len(block)) for number, block in enumerate(blocks)]], read, 2)

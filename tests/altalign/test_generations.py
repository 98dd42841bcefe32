"""Names of shards say which generation they are of."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign import generations, storage
from altalign.errors import UsageError


@given(st.integers(1, 20_000), st.integers(0, 200_000))
def test_a_name_says_its_generation_with_and_without_an_ending(generation: int, number: int) -> None:
    name = generations.named(generation, number)
    assert generations.of(name) == generation
    assert generations.of(f"{name}.tar") == generation


@given(st.lists(st.tuples(st.integers(1, 9_999), st.integers(0, 99_999))))
def test_names_sort_as_generations_and_numbers_do(places: list[tuple[int, int]]) -> None:
    assert sorted(generations.named(*place) for place in places) == [generations.named(*of) for of in sorted(places)]


def test_a_run_of_several_generations_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = str(tmp_path / "manifest.json")
    storage.write_sealed(path, {"shards": []})
    generations.check_one(str(tmp_path))
    storage.write_sealed(path, {"shards": [], generations.ENTRY: 3})
    with pytest.raises(UsageError, match="of 3 generations; `altalign compact"):
        generations.check_one(str(tmp_path))

"""Names of shards say which generation they are of."""

from hypothesis import given
from hypothesis import strategies as st

from altalign.data import generations


@given(st.integers(1, 20_000), st.integers(0, 200_000))
def test_a_name_says_its_generation_with_and_without_an_ending(generation: int, number: int) -> None:
    name = generations.named(generation, number)
    assert generations.number_of(name) == generation
    assert generations.number_of(f"{name}.tar") == generation


@given(st.lists(st.tuples(st.integers(1, 9_999), st.integers(0, 99_999))))
def test_names_sort_as_generations_and_numbers_do(places: list[tuple[int, int]]) -> None:
    assert sorted(generations.named(*place) for place in places) == [generations.named(*of) for of in sorted(places)]

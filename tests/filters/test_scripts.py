from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from fontTools.unicodedata import script, script_name
from hypothesis import given
from hypothesis import strategies as st

from altalign.filters import languages
from altalign.filters.unicode_data import LETTER, entry
from tools import make_unicode_data


def test_the_stored_table_is_what_its_sources_give() -> None:
    for stored, built in zip(languages.table(), make_unicode_data.build_scripts().values(), strict=True):
        np.testing.assert_array_equal(np.asarray(stored), built)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a red cat", "Latin"),
        ("Привет, world, мир", "Cyrillic"),
        ("日本語の本", "Han"),
        ("12 — 3!", "none"),
        ("", "none"),
        ("αa", "Greek"),
        ("𐌀𐌁", "Old Italic"),
    ],
)
def test_the_script_is_that_of_most_letters(caption: str, expected: str) -> None:
    assert languages.main_scripts(pa.array([caption], pa.string())).to_pylist() == [expected]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_scripts_are_those_of_a_plain_loop(captions: list[str]) -> None:
    def plain(caption: str) -> str:
        letters = Counter(script_name(script(character)) for character in caption if entry(character) & LETTER)
        own = {name: n for name, n in letters.items() if name not in ("Common", "Inherited", "Unknown")}
        return min(own, key=lambda name: (-own[name], name)) if own else languages.NONE

    assert languages.main_scripts(pa.array(captions, pa.string())).to_pylist() == [
        plain(caption) for caption in captions
    ]

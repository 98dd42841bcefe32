from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.figures import text_figures

ROWS = st.tuples(
    st.sampled_from(["a cat", "кот", "12"]), st.sampled_from(["text_too_short", None]), st.integers(0, 2**128 - 1)
)


@given(st.lists(ROWS, max_size=40), st.sampled_from([1, 2, 1_024]))
def test_candidates_of_the_sample_are_counted_by_script_and_verdict(
    rows: list[tuple[str, str | None, int]], one_in: int
) -> None:
    keys = np.array([list(key.to_bytes(16)) for _, _, key in rows], np.uint8).reshape(-1, 16)
    captions, verdicts = (
        pa.array([row[0] for row in rows], pa.string()),
        pa.array([row[1] for row in rows], pa.string()).dictionary_encode(),
    )
    names = {"a cat": "Latin", "кот": "Cyrillic", "12": "none"}
    expected = Counter(
        (names[caption], verdict or "kept") for caption, verdict, key in rows if key >> 64 < 2**64 // one_in
    )
    found = text_figures.count_scripts(captions, verdicts, keys, one_in=one_in)
    assert found == expected


def test_of_a_long_caption_the_beginning_is_looked_at() -> None:
    caption = "к" * text_figures.SCRIPT_CHARACTERS + "a" * 2 * text_figures.SCRIPT_CHARACTERS
    found = text_figures.count_scripts(
        pa.array([caption], pa.string()),
        pa.nulls(1, pa.string()).dictionary_encode(),
        np.zeros((1, 16), np.uint8),
        one_in=1,
    )
    assert found == {("Cyrillic", "kept"): 1}

"""Which rows of two tables are the same, against a loop over Python objects; what an addition forgets of removals."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.schema import REMOVED
from altalign.pipelines.change.add import REFUSED, without_places
from altalign.storage.parquet import same_rows

Row = dict[str, Any]
SCHEMA = pa.schema([("key", pa.string()), ("page_url", pa.string()), ("words", pa.int32())])
rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.integers(0, 12).map(str),
            "page_url": st.sampled_from([None, "https://a.example/", "https://b.example/"]),
            "words": st.sampled_from([None, 1, 2]),
        }
    ),
    max_size=12,
    unique_by=lambda row: row["key"],
)


@given(rows, rows)
def test_rows_are_the_same_when_all_their_values_are_nulls_too(here: list[Row], there: list[Row]) -> None:
    one, other = same_rows(pa.Table.from_pylist(here, SCHEMA), pa.Table.from_pylist(there, SCHEMA), by="key")
    wanted = [(number, there.index(row)) for number, row in enumerate(here) if row in there]
    assert list(zip(one.tolist(), other.tolist(), strict=True)) == wanted


def test_what_was_removed_stays_listed_and_counts_no_more() -> None:
    of_pair = {"kind": "pair", "stage": "select", "source": "web", "reason": "removed", "shard": "00003", "row": 7}
    before = [
        {"kind": "url", "hash": "a", "because": "a letter"},
        {**of_pair, "hash": "b", "because": "a letter"},
        {**of_pair, "hash": "b", "because": REFUSED},
    ]
    after = without_places(pa.Table.from_pylist(before, REMOVED)).to_pylist()
    assert [(row["kind"], row["hash"], row["because"]) for row in after] == [
        ("url", "a", "a letter"),
        ("pair", "b", "a letter"),
    ]
    assert [row["stage"] or row["source"] or row["reason"] for row in after] == [None, None]
    assert [row["shard"] for row in after] == [None, "00003"]

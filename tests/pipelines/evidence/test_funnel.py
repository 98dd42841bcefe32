"""Images and bytes of rows, of each source and of all, held against a plain loop."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from altalign.pipelines.evidence import funnel

SIZES = (0, 7, 500, 2**40)
ROWS = st.lists(st.tuples(st.integers(0, len(SIZES) - 1), st.sampled_from(["web", "a table", "ü"])))


@given(rows=ROWS, cuts=st.integers(1, 3))
def test_an_image_counts_in_each_of_its_sources_and_once_in_all(rows: list[tuple[int, str]], cuts: int):
    def table(some: list[tuple[int, str]]) -> pa.Table:
        columns = {
            "image_id": [str(image) for image, _ in some],
            "source": [source for _, source in some],
            "size": [SIZES[image] for image, _ in some],
        }
        return pa.table(
            {name: pa.array(values, pa.int64() if name == "size" else pa.string()) for name, values in columns.items()}
        )

    whole: Any = pa.concat_tables([table(rows[part::cuts]) for part in range(cuts)])  # of several chunks
    expected = []
    for source in (None, *sorted({source for _, source in rows})):
        images = {image for image, of in rows if source in (None, of)}
        expected.append([source, len(images), sum(SIZES[image] for image in images)])
    assert funnel.of_images("image", whole, sizes="size") == [["image", *of] for of in expected]
    assert funnel.of_images("judge", whole, sizes=None) == [
        ["judge", source, images, None] for source, images, _ in expected
    ]
    entries = funnel.of_images("image", whole, sizes="size") + funnel.of_images("fetch", whole, sizes="size")
    assert funnel.renamed(entries, step="image", to="decontaminate") == funnel.of_images(
        "decontaminate", whole, sizes="size"
    )

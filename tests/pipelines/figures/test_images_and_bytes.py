"""Images and bytes of rows, of each source and of all, held against a plain loop."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from altalign.data.reasons import Stage
from altalign.pipelines.figures import image_figures

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
    assert image_figures.of_images_at("image", whole, sizes="size") == [("image", *of) for of in expected]
    assert image_figures.of_images_at("judge", whole, sizes=None) == [
        ("judge", source, images, None) for source, images, _ in expected
    ]


@given(of_images=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["image_too_small", "image_damaged"]))))
def test_an_image_is_dropped_once_however_many_pairs_have_it(of_images: list[tuple[int, str]]):
    rows = [(f"{image:04d}", reason) for image, (pairs, reason) in enumerate(of_images) for _ in range(pairs)]
    table = pa.table(
        [pa.array([row[column] for row in rows], pa.string()) for column in range(2)], ["image_id", "reason"]
    )
    reasons = sorted({reason for _, reason in of_images})
    expected = [("image", reason, sum(of == reason for _, of in of_images)) for reason in reasons]
    assert image_figures.dropped_images(Stage.IMAGE, table) == expected

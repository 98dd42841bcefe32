"""Hosts, images and bytes at each step, and galleries."""

import io
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from altalign.data.reasons import Stage
from altalign.data.schema import DROPPED
from altalign.filters.one_url import host_of
from altalign.pipelines.figures import image_figures, text_figures
from altalign.pipelines.images import judging
from altalign.pipelines.run import image_tables

ROWS_OF_HOSTS = st.tuples(
    st.integers(0, 2**128 - 1),
    st.sampled_from(["https://a.example/1", "https://b.example:8/2", "http://[::1]/", None]),
    st.sampled_from([0, 1, 2]),
)


@given(st.lists(ROWS_OF_HOSTS, max_size=40), st.sampled_from([1, 2, 1_024]))
def test_images_of_the_sample_are_counted_by_host(rows: list[tuple[int, str | None, int]], one_in: int) -> None:
    ids = [f"{number:032x}" for number, _, _ in rows]
    found = image_figures.count_hosts(
        ids,
        [url for _, url, _ in rows],
        [ended > 0 for _, _, ended in rows],
        [ended > 1 for _, _, ended in rows],
        one_in=one_in,
    )
    sample = [(host_of(url or ""), ended) for number, url, ended in rows if number >> 64 < 2**64 // one_in]
    assert {host: images for host, (images, _, _) in found.items()} == Counter(host for host, _ in sample)
    assert {host: came for host, (_, came, _) in found.items() if came} == Counter(
        host for host, ended in sample if ended > 0
    )
    assert {host: kept for host, (_, _, kept) in found.items() if kept} == Counter(
        host for host, ended in sample if ended > 1
    )


SIZES = (0, 7, 500, 2**40)
ROWS_OF_IMAGES = st.lists(st.tuples(st.integers(0, len(SIZES) - 1), st.sampled_from(["web", "a table", "ü"])))


@given(rows=ROWS_OF_IMAGES, cuts=st.integers(1, 3))
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


def hexed(number: int) -> str:
    return f"{number:032x}"


Row = tuple[str, int, str]
ROWS_OF_GALLERY = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.integers(0, 40).map(lambda n: n << 96 | n), st.sampled_from(["p", "q", "r"])
    ),
    max_size=400,
)


@given(ROWS_OF_GALLERY, st.integers(1, 5))
def test_of_each_reason_the_pairs_of_the_smallest_keys_are_chosen_once_however_rows_come(
    rows: list[Row], batches: int
) -> None:
    expected = []
    for reason in ("a", "b"):
        pages = {
            key: min(page for of, other, page in rows if (of, other) == (reason, key))
            for of, key, _ in rows
            if of == reason
        }
        expected += [(reason, hexed(key), pages[key]) for key in sorted(pages)[: text_figures.PER_REASON]]
    found, smallest = DROPPED.empty_table(), text_figures.Smallest(2)
    for begin in range(batches):
        part = rows[begin::batches]
        keys = np.array([list(key.to_bytes(16)) for _, key, _ in part], np.uint8).reshape(-1, 16)
        chosen = smallest.choose(np.array(["ab".index(reason) for reason, _, _ in part], np.uint8), keys)
        columns = {
            "reason": [part[number][0] for number in chosen],
            "key": [hexed(part[number][1]) for number in chosen],
            "page_url": [part[number][2] for number in chosen],
        }
        added = pa.table(
            {field.name: pa.array(columns.get(field.name, [None] * len(chosen)), field.type) for field in DROPPED}
        )
        found = text_figures.smallest_pairs(pa.concat_tables([found, added]))
    assert [(row["reason"], row["key"], row["page_url"]) for row in found.to_pylist()] == expected


def test_a_pair_on_many_pages_is_a_candidate_with_all_its_rows_and_leaves_room_for_others() -> None:
    """Which of equal ones a partition takes is of the machine."""
    numbers = [*[7] * 1_000, *range(100, 200)]
    keys = np.array([list((number << 64).to_bytes(16)) for number in numbers], np.uint8)
    chosen = text_figures.Smallest(1).choose(np.zeros(len(keys), np.uint8), keys)
    assert chosen.tolist() == list(range(1_000 + text_figures.PER_REASON - 1))


def test_few_rows_a_batch_are_few_in_all() -> None:
    keys = np.random.default_rng(1).integers(0, 256, (10_000, 16), np.uint8)
    smallest = text_figures.Smallest(1)
    assert (
        sum(len(smallest.choose(np.zeros(20, np.uint8), keys[at : at + 20])) for at in range(0, len(keys), 20)) < 1_000
    )


@pytest.mark.parametrize(
    ("population", "expected"), [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (201, 4), (401, 8), (100_000, 1_024)]
)
def test_a_sample_is_one_in_a_power_of_two_and_no_larger_than_wanted(population: int, expected: int) -> None:
    assert text_figures.one_in(population, 100) == expected
    assert population <= 100 * expected


@pytest.mark.parametrize("per_reason", [1, 5, 24])
def test_the_first_images_of_each_reason_are_pictured_once(per_reason: int) -> None:
    ids = [hexed(number // 2) for number in range(100)]  # two captions an image
    reasons = ["small" if number // 2 % 2 else "damaged" for number in range(100)]
    pictures = [None if number < 2 else b"%d" % (number // 2) for number in range(100)]
    rows = pa.table({"image_id": ids, "reason": reasons, "picture": pictures})
    found = image_figures.pictured(rows, per_reason=per_reason)
    assert found.schema.names == image_tables.PICTURE.names
    assert found["image_id"].to_pylist() == ids[: 4 * per_reason : 2]
    assert found["picture"].to_pylist() == pictures[: 4 * per_reason : 2]


def test_a_picture_is_small_upright_and_on_white() -> None:
    file = io.BytesIO()
    image = Image.new("RGBA", (600, 300), (0, 0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(file, "PNG", exif=exif)
    data = judging.picture(file.getvalue(), pixels_at_most=10**6)
    assert data is not None
    with Image.open(io.BytesIO(data)) as found:
        assert (found.format, found.size) == ("WEBP", (96, 192))
        assert min(found.convert("L").tobytes()) > 250


def test_there_is_no_picture_of_what_cannot_be_decoded_or_is_too_large() -> None:
    file = io.BytesIO()
    Image.new("L", (600, 300)).save(file, "PNG")
    assert judging.picture(file.getvalue(), pixels_at_most=100) is None
    assert judging.picture(file.getvalue()[:200], pixels_at_most=10**6) is None
    assert image_figures.picture(b"<svg/>", pixels_at_most=10**6) is None
    assert image_figures.picture(b"", pixels_at_most=10**6) is None

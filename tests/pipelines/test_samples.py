import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from altalign.schema import DROPPED
from pipelines import samples


def hexed(number: int) -> str:
    return f"{number:032x}"


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 2**128 - 1)), max_size=200, unique_by=lambda row: row[1]), st.integers(1, 5))
def test_of_each_reason_the_smallest_keys_are_chosen_however_rows_come(rows: list[tuple[str | None, int]], batches: int) -> None:
    expected = [hexed(key) for reason in ("a", "b") for key in sorted(key for of, key in rows if of == reason)[: samples.PER_REASON]]
    found = DROPPED.empty_table()
    for begin in range(batches):
        part = rows[begin::batches]
        keys = np.array([list(key.to_bytes(16)) for _, key in part], np.uint8).reshape(-1, 16)
        reasons = pa.array([reason for reason, _ in part], pa.string())
        chosen = samples.candidates(reasons, keys)
        columns = {"reason": reasons.take(chosen), "key": [hexed(part[number][1]) for number in chosen]}
        added = pa.table({field.name: pa.array(columns.get(field.name, [None] * len(chosen)), field.type) for field in DROPPED})
        found = samples.smallest_keys(pa.concat_tables([found, added]))
    assert found["key"].to_pylist() == expected


@pytest.mark.parametrize(("population", "expected"), [(0, 1), (1, 1), (100, 1), (101, 2), (200, 2), (201, 4), (401, 8), (100_000, 1_024)])
def test_a_sample_is_one_in_a_power_of_two_and_no_larger_than_wanted(population: int, expected: int) -> None:
    assert samples.one_in(population, 100) == expected
    assert population <= 100 * expected


@pytest.mark.parametrize("units", [0, 1, 5, 24, 1_000])
def test_units_together_say_where_enough_images_of_each_reason_lie(units: int) -> None:
    ids = [hexed(number // 2) for number in range(100)]  # two captions an image
    reasons = ["small" if number // 2 % 2 else "damaged" for number in range(100)]
    found = samples.places_of(ids, reasons, range(100), range(100), units=units)
    per_reason = min(25, -(-samples.PER_REASON // max(1, units)))
    assert len(found) == 2 * per_reason
    assert len({image_id for image_id, _, _ in found}) == len(found)
    assert sum(reasons[offset] == "small" for _, offset, _ in found) == per_reason
    assert per_reason * max(1, units) >= samples.PER_REASON


def test_a_picture_is_small_upright_and_on_white() -> None:
    file = io.BytesIO()
    image = Image.new("RGBA", (600, 300), (0, 0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(file, "PNG", exif=exif)
    data = samples.picture(file.getvalue(), pixels_at_most=10**6)
    assert data is not None
    with Image.open(io.BytesIO(data)) as found:
        assert (found.format, found.size) == ("WEBP", (96, 192))
        assert min(found.convert("L").tobytes()) > 250


def test_there_is_no_picture_of_what_cannot_be_decoded_or_is_too_large() -> None:
    file = io.BytesIO()
    Image.new("L", (600, 300)).save(file, "PNG")
    assert samples.picture(file.getvalue(), pixels_at_most=100) is None
    assert samples.picture(file.getvalue()[:200], pixels_at_most=10**6) is None
    assert samples.picture(b"<svg/>", pixels_at_most=10**6) is None
    assert samples.picture(b"", pixels_at_most=10**6) is None

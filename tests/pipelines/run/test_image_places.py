import io

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data import key
from altalign.data.schema import IMAGE_PLACE
from altalign.filters import identity
from altalign.pipelines.run.image_places import PLACE, Collected, Kind, as_bytes, first_of_each, in_order

derandomized = settings(derandomize=True, deadline=None, max_examples=60)


def batch(rows: list[tuple[str, int | None, int | None, bytes | None]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [[], [], [], []]
    return pa.record_batch(
        [pa.array(list(column), kind) for column, kind in zip(columns, IMAGE_PLACE.types, strict=True)],
        schema=IMAGE_PLACE,
    )


def ids_of(urls: list[str]) -> np.ndarray:
    return as_bytes(identity.image_ids(pa.array(urls, pa.string())))


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=4), st.randoms(use_true_random=False))
@derandomized
def test_of_several_captures_the_first_in_input_order_counts(files: list[list[str]], random) -> None:
    parts = []
    for number, urls in enumerate(files):
        collected = Collected(number, plain=Kind.RECORD)
        for begin in range(0, len(urls), 2):  # readers hand on one batch after another
            collected.add(
                batch([(url, 100 * number + begin + i, None, None) for i, url in enumerate(urls[begin : begin + 2])]),
                io.BytesIO(),
            )
        assert len(collected) == len(urls)
        parts.append(collected.sorted())
    random.shuffle(parts)  # whatever order the files come in
    places = in_order(np.concatenate([np.zeros(0, PLACE), *parts]))
    found, is_there = first_of_each(places, ids_of(list("abcdefghi")))
    for url, place, there in zip("abcdefghi", found, is_there.tolist(), strict=True):
        first = next(((number, urls.index(url)) for number, urls in enumerate(files) if url in urls), None)
        assert there == (first is not None)
        if first:
            assert (place["file"], place["row"], place["offset"]) == (*first, 100 * first[0] + first[1])
            assert place["image_id"] == bytes.fromhex(key.image_id(url))


def test_places_sort_as_the_hex_of_their_ids() -> None:
    collected = Collected(0, plain=Kind.RECORD)
    collected.add(batch([(str(n), n, None, None) for n in range(2_000)]), io.BytesIO())
    ordered = collected.sorted()
    expected = sorted((key.image_id(str(n)), n) for n in range(2_000))
    assert [(bytes(place["image_id"]).ljust(16, b"\0").hex(), int(place["offset"])) for place in ordered] == expected


def test_ids_with_zero_bytes_at_their_ends_are_told_apart_and_sorted() -> None:
    ids = np.array(
        [[1] + [0] * 15, [0] * 16, [1] + [0] * 14 + [1], [255] * 16, [0] * 15 + [1], [128] + [0] * 15], np.uint8
    )
    places = np.zeros(len(ids), PLACE)
    places["image_id"], places["row"] = as_bytes(ids), np.arange(len(ids))
    assert in_order(places)["row"].tolist() == [1, 4, 0, 2, 5, 3]
    found, is_there = first_of_each(in_order(places), as_bytes(ids))
    assert found["row"].tolist() == list(range(len(ids)))
    assert is_there.all()
    assert in_order(places[::2].copy())["row"].tolist() == [4, 0, 2]


def test_each_kind_of_place_is_kept_as_it_was_found() -> None:
    images = io.BytesIO()
    collected = Collected(7, plain=Kind.ROW)
    collected.add(
        batch([("a", None, None, None), ("b", 5, 10, None), ("c", None, None, b"abc"), ("d", 9, None, b"")]), images
    )
    collected.add(batch([("e", None, None, b"defg"), ("f", 3, None, None)]), images)
    found, is_there = first_of_each(collected.sorted(), ids_of(list("abcdef")))
    assert is_there.all()
    assert [place.tolist()[1:] for place in found] == [
        (7, Kind.ROW, 0, -1, -1),
        (7, Kind.RANGE, 1, 5, 10),
        (7, Kind.COPIED, 2, 0, 3),
        (7, Kind.COPIED, 3, 3, 0),
        (7, Kind.COPIED, 4, 3, 4),
        (7, Kind.ROW, 5, 3, -1),
    ]
    assert images.getvalue() == b"abcdefg"


def test_no_places_and_no_questions() -> None:
    empty = Collected(0, plain=Kind.RECORD).sorted()
    assert (len(empty), empty.dtype) == (0, PLACE)
    assert first_of_each(empty, ids_of(["a"]))[1].tolist() == [False]
    assert [len(found) for found in first_of_each(empty, ids_of([]))] == [0, 0]


def test_places_survive_their_bytes() -> None:
    collected = Collected(3, plain=Kind.RECORD)
    collected.add(batch([("a", 1, None, None), ("b", 2, None, None)]), io.BytesIO())
    assert (np.frombuffer(collected.sorted().tobytes(), PLACE) == collected.sorted()).all()

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.data.key import image_id, sample_key

texts = st.text(st.characters(exclude_categories=["Cs"]))

# Fixed for ever: (identity, image_id, caption, key). From `printf '…' | b2sum -l 128`, not from our code.
GOLDEN = [
    (
        "http://a.example/1.jpg",
        "7c7ff54f702ebb89f030c7eef99938b1",
        "a dog on a mat",
        "463c865ca3c341eac9a949914fec090a",
    ),
    ("http://a.example/1.jpg", "7c7ff54f702ebb89f030c7eef99938b1", "", "cc42e787c8b4dbe767d03e003b980ccd"),
    ("", "cae66941d9efbd404e4d88758ea67670", "a dog on a mat", "146e59f85c1f6391cac8664675030829"),
    ("", "cae66941d9efbd404e4d88758ea67670", "", "7025e075d5e2f6cde3cc051a31f07660"),
    (
        "https://xn--bcher-kva.example/%C3%BC.jpg",
        "b74e0942be3ee7a933a37cc8b4b73457",
        "ein Café in 東京 👍🏽",
        "60f6d90d5f2cc4f172e009a21f383847",
    ),
    ("http://a.example/ü.jpg", "9d7653b78ac481a0d7947d5e3abd231d", "کتاب", "dafecd120aad9d90b43785cd27bc1ab6"),
    (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "95ecc3717c8b17a0b653a29ab6e01d9c",
        "no bytes at all",
        "ad27b30beef50d8aa2d428981ccb6489",
    ),
]


@pytest.mark.parametrize(("identity", "image", "caption", "key"), GOLDEN)
def test_ids_and_keys_are_fixed_for_ever(identity: str, image: str, caption: str, key: str) -> None:
    assert image_id(identity) == image
    assert sample_key(identity, caption) == key


@given(texts.filter(lambda text: "\0" not in text), texts, st.integers(0, 20))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_where_the_identity_ends_and_the_caption_begins_matters(identity: str, caption: str, cut: int) -> None:
    joined = identity + caption
    other = joined[:cut], joined[cut:]
    if other != (identity, caption) and "\0" not in other[0]:
        assert sample_key(*other) != sample_key(identity, caption)


@given(texts.filter(lambda text: "\0" not in text), texts)
@settings(derandomize=True, deadline=None, max_examples=50)
def test_a_key_is_the_id_of_identity_zero_caption(identity: str, caption: str) -> None:
    assert sample_key(identity, caption) == image_id(f"{identity}\0{caption}")
    assert len(sample_key(identity, caption)) == len(image_id(identity)) == 32


def test_the_code_points_count_and_not_what_they_look_like() -> None:
    assert sample_key("a", "caf\u00e9") != sample_key("a", "cafe\u0301")

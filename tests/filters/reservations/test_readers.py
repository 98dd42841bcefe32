"""Readers on what nobody should have to read: hostile bytes, long values, patterns against a twin, cut marks."""

import json

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from altalign.data.purposes import PURPOSES
from altalign.filters.reservations import NOTATIONS, Said, of_headers, of_image, of_metas, opposed
from altalign.filters.reservations.paths import Pattern, path_of
from altalign.filters.reservations.robots_txt import Robots
from altalign.filters.reservations.tdmrep import Reservations
from tests.support.marks import box, manifest_store, packet, superbox, with_manifests
from tests.support.pictures import FORMATS, chunk, encoded, picture

US = "altalign"
TRAINING = ("train", "train-generative", "train-other")
NO_TRAINING = {"entries": {"cawg.ai_training": {"use": "notAllowed"}}}


def purposes(said: list[Said]) -> set[str]:
    """Those that are opposed."""
    return {purpose for purpose in PURPOSES if opposed(said, purpose, US)}


SPELLED = ("/", "a", "b", "$", "%24", "%2A", "é", "%C3%A9", "%41")


@given(
    pattern=st.lists(st.sampled_from((*SPELLED, "*")), min_size=1, max_size=6).map("".join),
    path=st.lists(st.sampled_from((*SPELLED, "?")), max_size=8).map("".join),
)
def test_patterns_match_as_those_of_protego(pattern: str, path: str) -> None:
    url = f"http://a.test/{path}"
    twin = Protego.parse(f"User-agent: *\nDisallow: /{pattern}\n")
    alike = {f"/{pattern}", f"/{pattern}".replace("$", "%24")}  # Protego takes a $ for itself, too
    assert any(Pattern.of(each).matches(path_of(url)) for each in alike) == (not twin.can_fetch(url, "x"))


@given(data=st.binary(max_size=300))
def test_any_bytes_can_be_looked_at(data: bytes) -> None:
    for said in (
        of_image(data),
        of_image(b"\xff\xd8jumb" + data),
        of_image(b"jumb" + b"x" * 30 + b"cawg.training-mining\0" + data),
        of_image(b"DataMining='DMI-" + data),
        Reservations.parse(data).said("http://a.test/a", None),
        Robots.parse(b"User-agent: *\n" + data, US).archived("http://a.test/a", None),
        of_headers(
            {"link": [data.decode("latin-1")], "content-usage": [data.decode("latin-1")]}, US, "page header", None
        ),
        of_metas([("robots", data.decode("latin-1"))], US, None),
    ):
        assert {each.notation for each in said} <= {*NOTATIONS}
        assert all(len(each.value) <= 500 for each in said)
        assert isinstance(purposes(said), set)


@pytest.mark.parametrize("content", [b"", b"\xff", b"\x81" * 1_000, cbor2.dumps(3), cbor2.dumps({"entries": [1]})])
def test_an_assertion_that_cannot_be_read_opposes_training(content: bytes) -> None:
    data = with_manifests(encoded(picture(32, 32)), manifest_store({"cawg.training-mining": content}))
    said = of_image(data)
    assert [each[:3] for each in said] == [("c2pa", "cawg.training-mining: unreadable", "image file")]
    assert purposes(said) == {*TRAINING}


def test_assertions_in_json_in_several_manifests_and_across_segments() -> None:
    plain = encoded(picture(32, 32), "jpeg")
    store = manifest_store({"cawg.training-mining": NO_TRAINING, "cawg.training-mining__1": NO_TRAINING}, filler=59_600)
    for at in range(len(store) - 200, len(store)):  # so that a segment ends at every byte of the last assertion
        longer = manifest_store({"cawg.training-mining": NO_TRAINING}, filler=59_600 + len(store) - at)
        assert purposes(of_image(with_manifests(plain, longer))) == {"train", "train-other"}
    assert [each.value for each in of_image(with_manifests(plain, store))] == ["cawg.ai_training=notAllowed"]
    content = json.dumps({"entries": {"c2pa.data_mining": {"use": "constrained"}}}).encode()
    in_json = superbox("00" * 16, "c2pa.training-mining", box(b"json", content))
    assert purposes(of_image(with_manifests(plain, in_json))) == {*TRAINING}


def test_images_without_marks_say_nothing() -> None:
    assert [of_image(encoded(picture(64, 64), kind)) for kind in FORMATS] == [[]] * len(FORMATS)
    assert of_image(packet('plus:DataMining="no word of the list"')) == []


def test_marks_of_a_jpeg_stand_before_its_picture() -> None:
    mark = packet('plus:DataMining="http://ns.useplus.org/ldf/vocab/DMI-PROHIBITED"')
    data = encoded(picture(64, 64), "jpeg", xmp=mark)
    filled = data[:2] + b"\xff\xff" + data[2:]  # with fill bytes
    for each in (data, filled, data[:2] + b"lost" + data[2:], data[: data.index(b"\xff\xda") + 2]):
        assert [said.notation for said in of_image(each)] == ["iptc"]
    plain = encoded(picture(64, 64), "jpeg")
    scan = plain.index(b"\xff\xda")
    for each in (plain, plain[:scan] + b"\xff\xff" + plain[scan:]):
        assert of_image(each + mark) == []  # behind the picture, of another file
    assert of_image(plain[:-2]) == of_image(plain[:3]) == of_image(plain[:20]) == []


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_marks_of_chunks_stand_anywhere_but_in_the_picture(kind: str) -> None:
    plain, mark = encoded(picture(64, 64), kind), packet('plus:DataMining="DMI-PROHIBITED"')
    at = plain.rindex(b"IEND") - 4 if kind == "png" else len(plain)
    of_kind = {
        "png": lambda name: chunk(name, mark),
        "webp": lambda name: name + len(mark).to_bytes(4, "little") + mark,
    }
    for name, found in ((b"iTXt", ["iptc"]), (b"IDAT", []), (b"VP8L", [])):
        assert [said.notation for said in of_image(plain[:at] + of_kind[kind](name) + plain[at:])] == found
    many = b"".join(chunk(b"tEXt", b"") if kind == "png" else b"EXIF" + bytes(4) for _ in range(20_000))
    assert [said.notation for said in of_image(plain[:at] + many + of_kind[kind](b"iTXt"))] == ["iptc"]


def test_of_a_long_value_what_is_about_use_is_kept() -> None:
    filler = [f"word-{number}" for number in range(1_000)]
    for name, word, notation in (
        ("x-robots-tag", "noai", "x-robots-tag"),
        ("content-usage", "train-ai=n", "content-usage"),
        ("content-signal", "ai-train=no", "content-signal"),
    ):
        for at in (0, 500, 1_000):
            value = ", ".join([*filler[:at], word, *filler[at:]])
            (said,) = of_headers({name: [value]}, US, "image header", None)
            assert (said.notation, said.value) == (notation, word)


def test_of_many_lines_those_that_decide_are_kept() -> None:
    lines = [f"Content-Usage: /{'a' * number} train-ai={'yn'[number % 2]}" for number in range(700)]
    lines += [f"Content-Usage: / dance-{number}=n" for number in range(700)]
    text = "\n".join(["User-agent: *", *lines, "Content-Usage: search=n"])
    robots = Robots.parse(text.encode(), US)
    for length in (3, 4, 400):
        (said,) = robots.said(f"http://a.test/{'a' * length}", None)
        of_others = [f"/{'a' * (length - 1)} train-ai=y"] * (length % 2)  # of which `train-ai=n` says nothing
        expected = [f"/{'a' * length} train-ai={'yn'[length % 2]}", *of_others, "search=n"]
        assert said.value.split("\n") == expected
        assert purposes([said]) == ({"search"} if length % 2 == 0 else {"train", "train-generative", "search"})
    (said,) = robots.said(f"http://a.test/{'a' * 699}", None)  # too long a path to be kept
    assert "train" in purposes([said])
    assert len(said.value) <= 500


def test_licences_of_a_file_of_thousands_are_few() -> None:
    text = "".join(f"License: https://a.test/{number}\n" for number in range(5_000))
    assert len(Robots.parse(text.encode(), US).archived("http://a.test/a", None)) <= 16

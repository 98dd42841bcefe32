"""The journal of a unit: cut anywhere, damaged or of other grounds, it says what is in hand and nothing else."""

import hashlib
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from altalign.data.reasons import DropReason
from altalign.errors import FullDiskError
from altalign.filters.reservations import Said
from altalign.pipelines.images.measuring import Measured, Outcome
from altalign.pipelines.web import journal
from altalign.pipelines.web.journal import JournalGrounds
from altalign.storage.local import GrowingFile

GROUNDS = JournalGrounds(requests="the same", measured="the same")
IMAGES = {0: b"first", 3: b"second image", 2: b"third"}


def measure(number: int, data: bytes) -> Measured:
    return Measured(format="png", width=number, height=len(data), found_sha256=hashlib.sha256(data).hexdigest())


def never(number: int, data: bytes) -> Measured:
    raise AssertionError(f"{number} was measured")


def written(path: str) -> dict[int, Outcome]:
    """A journal of three images and two failures."""
    with journal.opened(path, GROUNDS, never) as kept:
        for number, data in IMAGES.items():
            kept.in_hand(number, data, measure(number, data))
            if number == 3:
                kept.failed(1, DropReason.HTTP_STATUS, 503)
        kept.failed(4, DropReason.HTTP_TIMEOUT, None)
        return dict(kept.outcomes)


def bytes_of(path: str, outcome: Outcome) -> bytes:
    return Path(f"{path}.images").read_bytes()[outcome.offset : outcome.offset + outcome.bytes]


def end_of(outcomes: Mapping[int, Outcome]) -> int:
    return max((outcome.offset + outcome.bytes for outcome in outcomes.values()), default=0)


def test_what_was_kept_is_there_when_the_unit_is_gone_on_with(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    before = written(path)
    assert before[1] == Outcome(DropReason.HTTP_STATUS, 503)
    with journal.opened(path, GROUNDS, never) as kept:
        assert kept.outcomes == before
        assert {number: bytes_of(path, kept.outcomes[number]) for number in IMAGES} == IMAGES
        kept.in_hand(5, b"a sixth", measure(5, b"a sixth"))
    assert bytes_of(path, journal.read(path).outcomes[5]) == b"a sixth"


def test_what_comes_together_is_written_together_bytes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, writes, real = str(tmp_path / "unit"), list[tuple[str, int]](), GrowingFile.write

    def write(self: GrowingFile, data: bytes) -> None:
        real(self, data)
        writes.append((Path(f"{path}.images").read_bytes().decode(), len(journal.read(path).outcomes)))

    monkeypatch.setattr(journal, "GATHERED_S", 3600.0)
    monkeypatch.setattr(journal, "GATHERED_BYTES", 12)
    monkeypatch.setattr(GrowingFile, "write", write)
    with suppress(KeyError), journal.opened(path, GROUNDS, never) as kept:
        for number, data in enumerate((b"1", b"22", b"333", b"4444", b"55555", b"666666")):
            kept.in_hand(number, data, measure(number, data))
        kept.failed(6, DropReason.HTTP_TIMEOUT, None)
        raise KeyError("stopped")  # what is in hand then is kept, too
    whole = "122333444455555666666"
    assert writes == [("1", 0), ("1", 1), (whole[:15], 1), (whole[:15], 5), (whole, 5), (whole, 7)]
    assert set(journal.read(path).outcomes) == set(range(7))


def test_images_that_do_not_fit_leave_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = str(tmp_path / "unit"), GrowingFile.write

    def write(self: GrowingFile, data: bytes) -> None:
        if b"3" in data and not data.endswith(b"\n"):
            raise FullDiskError("no space left on the device")
        real(self, data)

    monkeypatch.setattr(journal, "GATHERED_S", 3600.0)
    monkeypatch.setattr(GrowingFile, "write", write)
    with suppress(FullDiskError), journal.opened(path, GROUNDS, never) as kept:
        for number in range(5):
            kept.in_hand(number, b"%d" % number, measure(number, b"%d" % number))
    assert set(journal.read(path).outcomes) == {0}  # the first is written at once, the others together


def test_cut_at_any_byte_it_keeps_what_was_whole_and_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "whole")
    before = written(path)
    lines, images = Path(f"{path}.journal").read_bytes(), Path(f"{path}.images").read_bytes()
    ends = [at for at in range(1, len(lines) + 1) if lines[at - 1 : at] == b"\n"]
    for cut in range(len(lines) + 1):
        path = str(tmp_path / "cut")
        whole = sum(end <= cut + 1 for end in ends)  # a line that lacks but its line break is whole
        expected = dict(list(before.items())[: max(0, whole - 1)])
        arrived = dict(list(before.items())[:whole])  # bytes are written before their line
        Path(f"{path}.journal").write_bytes(lines[:cut])
        Path(f"{path}.images").write_bytes(images[: end_of(arrived) + cut % 7])  # with a part of what came next
        with journal.opened(path, GROUNDS, never) as kept:
            assert kept.outcomes == expected
            assert Path(f"{path}.images").stat().st_size == end_of(expected)
            for number, data in IMAGES.items():
                if number not in kept.outcomes:
                    kept.in_hand(number, data, measure(number, data))
        after = journal.read(path).outcomes
        assert {number: bytes_of(path, after[number]) for number in IMAGES} == IMAGES


@pytest.mark.parametrize("harm", ["lost", "cut", "changed"])
def test_an_image_whose_bytes_are_not_as_they_came_is_not_in_hand(tmp_path: Path, harm: str) -> None:
    path = str(tmp_path / "unit")
    before = written(path)
    images = Path(f"{path}.images")
    data = images.read_bytes()
    at = before[3].offset
    images.write_bytes({"lost": b"", "cut": data[: at + 4], "changed": data[:at] + b"S" + data[at + 1 :]}[harm])
    gone = {"lost": {0, 2, 3}, "cut": {2, 3}, "changed": {3}}[harm]
    with journal.opened(path, GROUNDS, never) as kept:
        assert set(kept.outcomes) == set(before) - gone
        for number in gone:
            kept.in_hand(number, IMAGES[number], measure(number, IMAGES[number]))
    after = journal.read(path).outcomes
    assert {number: bytes_of(path, after[number]) for number in IMAGES} == IMAGES


def test_what_rests_on_other_requests_is_forgotten(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    written(path)
    with journal.opened(path, JournalGrounds("something else", GROUNDS.measured), never) as kept:
        assert kept.outcomes == {}
    assert Path(f"{path}.images").stat().st_size == 0


def test_where_only_measuring_differs_the_bytes_at_hand_are_measured_anew(tmp_path: Path) -> None:
    path, seen = str(tmp_path / "unit"), []
    before = written(path)

    def anew(number: int, data: bytes) -> Measured:
        seen.append((number, data))
        return measure(number, data)._replace(nsfw_score=0.25)

    with journal.opened(path, JournalGrounds(GROUNDS.requests, "something else"), anew) as kept:
        assert sorted(seen) == sorted(IMAGES.items())
        assert kept.outcomes[0].measured.nsfw_score == 0.25
        assert kept.outcomes[4] == before[4]
    with journal.opened(path, JournalGrounds(GROUNDS.requests, "something else"), never) as kept:
        assert kept.outcomes[0].measured.nsfw_score == 0.25


def test_what_is_taken_out_is_forgotten_and_the_rest_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    before = written(path)
    left = journal.forget(path, [1, 4])
    assert left == {number: before[number] for number in IMAGES}
    with journal.opened(path, GROUNDS, never) as kept:
        assert kept.outcomes == left


def test_a_journal_that_is_none_is_begun_anew(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    for content in (b"", b"\n", b"no journal\n", b"00000000 {}\n", bytes(range(256))):
        Path(f"{path}.journal").write_bytes(content)
        assert journal.read(path).grounds is None
        with journal.opened(path, GROUNDS, never) as kept:
            assert kept.outcomes == {}


def test_the_names_of_units_with_a_journal(tmp_path: Path) -> None:
    assert journal.names(str(tmp_path / "nothing")) == []
    for name in ("00001-00000", "00000-00000"):
        written(str(tmp_path / name))
    assert journal.names(str(tmp_path)) == ["00000-00000", "00001-00000"]


@pytest.mark.parametrize(
    "value",
    [{}, [1, 2], [[1], None, None, 0, 0, []], [1, "no reason", None, 0, 0, []], [1, None, None, 0, 5, list(range(30))]],
)
def test_a_line_of_another_form_ends_what_is_read(tmp_path: Path, value: object) -> None:
    path = str(tmp_path / "unit")
    before = written(path)
    lines = Path(f"{path}.journal").read_bytes().splitlines(keepends=True)
    text = orjson.dumps(value)
    lines.insert(3, b"%08x %b\n" % (zlib.crc32(text), text))
    Path(f"{path}.journal").write_bytes(b"".join(lines))
    assert journal.read(path).outcomes == dict(list(before.items())[:2])


def test_what_was_said_is_in_the_journal_with_the_image(tmp_path: Path) -> None:
    path, said = str(tmp_path / "unit"), (Said("x-robots-tag", "nofollow", "image header", "2026-01-01T00:00:00Z"),)
    with journal.opened(path, GROUNDS, never) as kept:
        kept.in_hand(0, b"first", measure(0, b"first"), said)
        kept.in_hand(1, b"second", measure(1, b"second"), ())
        kept.failed(2, DropReason.OPT_OUT_IPTC, 200, (Said("iptc", "DMI-PROHIBITED", "image file", None),))
        kept.failed(3, DropReason.HTTP_STATUS, 404)
        before = dict(kept.outcomes)
    assert journal.read(path).outcomes == before
    assert [outcome.said and len(outcome.said) for outcome in before.values()] == [1, (), 1, None]

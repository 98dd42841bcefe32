"""The journal of a unit: cut anywhere, damaged or of other grounds, it says what is in hand and nothing else."""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from altalign.data.reasons import DropReason
from altalign.errors import FullDiskError
from altalign.filters.reservations import Listener, Said
from altalign.pipelines.images.judging import Found, Judged, Outcome, StoredColumns
from altalign.pipelines.images.measuring import Measured
from altalign.pipelines.web import journal
from altalign.pipelines.web.journal import JournalGrounds
from altalign.storage.local import GrowingFile

GROUNDS = JournalGrounds(requests="the same", judged="the same", listener=Listener("train", "altalign"))
IMAGES = {0: b"first", 3: b"second image", 2: b"third"}


def judged(number: int, data: bytes, stored: bytes | None = None) -> Judged:
    """An image that stays, as found unless the shard is to have other bytes of it."""
    found, stored = Found(number, data), data if stored is None else stored
    digests = [hashlib.sha256(each).hexdigest() for each in (data, stored)]
    measured = Measured(format="png", width=number, height=len(data), found_sha256=digests[0])
    columns = StoredColumns(number, len(stored), "png", len(stored), digests[1])
    return Judged(found, Outcome(None, None, len(data), measured, stored=columns, features=b"\0\1"), stored)


def dropped(number: int, data: bytes) -> Judged:
    """An image that is dropped, and shown in a gallery."""
    of_kept = judged(number, data)
    outcome = of_kept.outcome._replace(failed=("image_too_small",), picture=b"a thumbnail", stored=None, features=None)
    return of_kept._replace(outcome=outcome, stored=None)


def never(images: Iterable[Found]) -> Iterator[Judged]:
    for found in images:
        raise AssertionError(f"{found.number} was judged")
        yield


def written(path: str) -> dict[int, Outcome]:
    """A journal of three images and two failures."""
    with journal.opened(path, GROUNDS, never) as kept:
        for number, data in IMAGES.items():
            kept.came(judged(number, data))
            if number == 3:
                kept.failed(1, DropReason.HTTP_STATUS, 503)
        kept.failed(4, DropReason.HTTP_TIMEOUT, None)
        return dict(kept.outcomes)


def bytes_of(path: str, outcome: Outcome) -> bytes:
    assert outcome.stored_at is not None
    assert outcome.stored is not None
    return Path(f"{path}.images").read_bytes()[outcome.stored_at : outcome.stored_at + outcome.stored.bytes]


def end_of(outcomes: Mapping[int, Outcome]) -> int:
    return max((at + size for outcome in outcomes.values() for at, size, _ in outcome.ranges), default=0)


def test_what_was_kept_is_there_when_the_unit_is_gone_on_with(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    before = written(path)
    assert before[1] == Outcome(DropReason.HTTP_STATUS, 503)
    with journal.opened(path, GROUNDS, never) as kept:
        assert kept.outcomes == before
        assert {number: bytes_of(path, kept.outcomes[number]) for number in IMAGES} == IMAGES
        kept.came(judged(5, b"a sixth"))
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
            kept.came(judged(number, data))
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
            kept.came(judged(number, b"%d" % number))
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
                    kept.came(judged(number, data))
        after = journal.read(path).outcomes
        assert {number: bytes_of(path, after[number]) for number in IMAGES} == IMAGES


@pytest.mark.parametrize("harm", ["lost", "cut", "changed"])
def test_an_image_whose_bytes_are_not_as_they_came_is_not_in_hand(tmp_path: Path, harm: str) -> None:
    path = str(tmp_path / "unit")
    before = written(path)
    images = Path(f"{path}.images")
    data = images.read_bytes()
    at = before[3].stored_at or 0
    images.write_bytes({"lost": b"", "cut": data[: at + 4], "changed": data[:at] + b"S" + data[at + 1 :]}[harm])
    gone = {"lost": {0, 2, 3}, "cut": {2, 3}, "changed": {3}}[harm]
    with journal.opened(path, GROUNDS, never) as kept:
        assert set(kept.outcomes) == set(before) - gone
        for number in gone:
            kept.came(judged(number, IMAGES[number]))
    after = journal.read(path).outcomes
    assert {number: bytes_of(path, after[number]) for number in IMAGES} == IMAGES


def test_what_rests_on_other_requests_is_forgotten(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    written(path)
    with journal.opened(path, GROUNDS._replace(requests="something else"), never) as kept:
        assert kept.outcomes == {}
    assert Path(f"{path}.images").stat().st_size == 0


def test_of_a_dropped_image_no_byte_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    with journal.opened(path, GROUNDS, never) as kept:
        kept.came(dropped(0, b"first"))
        before = kept.outcomes[0]
    assert Path(f"{path}.images").read_bytes() == b""
    assert (before.failed, before.picture, before.found_at) == (("image_too_small",), b"a thumbnail", None)
    with journal.opened(path, GROUNDS, never) as kept:
        assert kept.outcomes == {0: before}


def test_of_an_image_that_is_stored_otherwise_only_that_is_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "unit")
    with journal.opened(path, GROUNDS, never) as kept:
        kept.came(judged(0, b"first", b"1st"))
        kept.came(judged(1, b"of a file, as a shard has it"), is_in_file=True)
        kept.came(judged(2, b"of a file", b"another"), is_in_file=True)
        before = dict(kept.outcomes)
    assert Path(f"{path}.images").read_bytes() == b"1stanother"
    assert (before[1].found_at, before[1].stored_at) == (None, None)
    with journal.opened(path, GROUNDS, never) as kept:
        assert kept.outcomes == before


@pytest.mark.parametrize("keeps_found", [False, True])
def test_where_only_judging_differs_what_was_kept_as_found_is_judged_anew(tmp_path: Path, *, keeps_found: bool) -> None:
    """The rest is forgotten, and asked for again: an image that was dropped, or stored otherwise."""
    path, other = str(tmp_path / "unit"), GROUNDS._replace(judged="something else")
    with journal.opened(path, GROUNDS, never) as kept:
        kept.came(judged(0, b"as found"), keeps_found=keeps_found)
        kept.came(judged(1, b"first", b"1st"), keeps_found=keeps_found)
        kept.came(dropped(2, b"small"), keeps_found=keeps_found)
        kept.failed(4, DropReason.HTTP_TIMEOUT, None)
        failed = kept.outcomes[4]
    seen = dict[int, bytes]()

    def anew(images: Iterable[Found]) -> Iterator[Judged]:
        for found in images:
            seen[found.number] = found.data
            yield judged(found.number, found.data, b"anew %d" % found.number)

    with journal.opened(path, other, anew) as kept:
        after = dict(kept.outcomes)
    assert seen == {0: b"as found", **({1: b"first", 2: b"small"} if keeps_found else {})}
    assert set(after) == {*seen, 4}
    assert after[4] == failed
    assert {number: bytes_of(path, after[number]) for number in seen} == {n: b"anew %d" % n for n in seen}
    with journal.opened(path, other, never) as kept:
        assert kept.outcomes == after
    seen.clear()
    with journal.opened(path, GROUNDS, anew) as kept:  # what was found is still there
        assert set(kept.outcomes) == set(after)
    assert seen[0] == b"as found"


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
        for number, of_image in enumerate((said, ())):
            found = judged(number, b"an image")
            kept.came(found._replace(outcome=found.outcome._replace(said=of_image)))
        kept.failed(2, DropReason.OPT_OUT_IPTC, 200, (Said("iptc", "DMI-PROHIBITED", "image file", None),))
        kept.failed(3, DropReason.HTTP_STATUS, 404)
        before = dict(kept.outcomes)
    assert journal.read(path).outcomes == before
    assert [outcome.said and len(outcome.said) for outcome in before.values()] == [1, (), 1, None]


NOAI = Said("x-robots-tag", "noai", "image header", "2026-01-01T00:00:00Z")
NO_SEARCH = Said("content-usage", "search=n", "image header", "2026-01-01T00:00:00Z")
REFUSED = Outcome(DropReason.OPT_OUT_CONTENT_USAGE, said=(NO_SEARCH,))
# What a journal for `train` knows of an image, and what it is for `search`; None: it has to be asked for again.
FOR_SEARCH: Mapping[str, tuple[Outcome, Outcome | None]] = {
    "came, nothing said": (stays := judged(0, b"data").outcome, stays),
    "came, said against it": (stays._replace(said=(NO_SEARCH,)), REFUSED),
    "came, and more may have been said": (
        stays._replace(said=(NOAI._replace(value="all"), *[NOAI._replace(value=f"all, {n}") for n in range(15)])), None
    ),
    "came, dropped by a rule": (dropped(0, b"data").outcome, dropped(0, b"data").outcome),
    "refused, and not now": (Outcome(DropReason.OPT_OUT_X_ROBOTS_TAG, 200, said=(NOAI,)), None),
    "refused, and now too": (
        Outcome(DropReason.OPT_OUT_X_ROBOTS_TAG, 200, said=(NOAI, NO_SEARCH)),
        Outcome(DropReason.OPT_OUT_CONTENT_USAGE, 200, said=(NOAI, NO_SEARCH)),
    ),
    "banned by robots.txt": (
        Outcome(DropReason.OPT_OUT_ROBOTS_TXT, said=(NO_SEARCH,)),
        Outcome(DropReason.OPT_OUT_ROBOTS_TXT, said=(NO_SEARCH,)),
    ),
    "failed": (Outcome(DropReason.HTTP_STATUS, 404), Outcome(DropReason.HTTP_STATUS, 404)),
}  # fmt: skip


@pytest.mark.parametrize("case", FOR_SEARCH)
def test_for_another_purpose_what_was_said_decides_and_what_was_refused_is_asked_for(tmp_path: Path, case: str) -> None:
    path, (before, expected) = str(tmp_path / "unit"), FOR_SEARCH[case]
    with journal.opened(path, GROUNDS, never) as kept:
        if before.reason is None:
            kept.came(Judged(Found(0, b"data"), before, b"data" if before.stored else None))
        else:
            kept.failed(0, before.reason, before.http_code, before.said)
    search = GROUNDS._replace(listener=Listener("search", "altalign"))
    with journal.opened(path, search, never) as kept:
        known = {number: outcome._replace(found_at=None, stored_at=None) for number, outcome in kept.outcomes.items()}
    assert known == ({} if expected is None else {0: expected})
    with journal.opened(path, search, never) as kept:  # and of the same purpose nothing is asked of statements
        assert len(kept.outcomes) == len(known)


@pytest.mark.parametrize("keeps_found", [False, True])
def test_another_purpose_and_other_rules_at_once(tmp_path: Path, *, keeps_found: bool) -> None:
    """What stays and was kept as found is judged anew; what is refused now is not looked at."""
    path, anew = str(tmp_path / "unit"), list[int]()

    def judge(images: Iterable[Found]) -> Iterator[Judged]:
        for found in images:
            anew.append(found.number)
            yield judged(found.number, bytes(found.data))

    with journal.opened(path, GROUNDS, never) as kept:
        for number, said in enumerate([(), (NO_SEARCH,)]):
            image = dropped(number, b"data")
            kept.came(image._replace(outcome=image.outcome._replace(said=said)), keeps_found=keeps_found)
    other = GROUNDS._replace(judged="something else", listener=Listener("search", "altalign"))
    with journal.opened(path, other, judge) as kept:
        assert kept.outcomes[1] == REFUSED
        assert (0 in kept.outcomes) == keeps_found
    assert anew == [0] * keeps_found

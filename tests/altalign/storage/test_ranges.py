"""Ranges of bytes against slices, with more files than may be open, and files that are not what they were."""

import os
import random
import signal
from pathlib import Path
from typing import BinaryIO

import pytest

from altalign import storage
from altalign.errors import UnreadableError
from altalign.machine import interrupts
from altalign.storage import ranges
from altalign.storage.ranges import Range, Ranges


def files(folder: Path, count: int) -> dict[str, bytes]:
    contents = {
        str(folder / f"{number}.tar"): random.Random(number).randbytes(5_000 + number) for number in range(count)
    }
    for path, content in contents.items():
        Path(path).write_bytes(content)
    return contents


@pytest.mark.parametrize("advice", [True, False])
def test_every_range_is_read_in_the_order_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, advice: bool
) -> None:
    if not advice:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    contents, rng = files(tmp_path, 2 * ranges.FILES_AT_MOST), random.Random(1)
    opened: list[BinaryIO] = []

    def open_read(path: str) -> BinaryIO:
        opened.append(real(path))
        assert sum(not file.closed for file in opened) <= ranges.FILES_AT_MOST
        return opened[-1]

    real = storage.open_read
    monkeypatch.setattr(storage, "open_read", open_read)
    wanted: list[Range | None] = []
    for _ in range(300):
        path, offset = rng.choice(list(contents)), rng.randrange(5_000)
        wanted.append(rng.choice([None, Range(path, offset, rng.randint(0, len(contents[path]) - offset))]))
    with Ranges(wanted) as found:
        read = [of and (of, found.read(of)) for of in found]
    assert read == [of and (of, contents[of.path][of.offset : of.offset + (of.length or 0)]) for of in wanted]
    assert opened
    assert all(file.closed for file in opened)


def test_a_range_without_a_length_is_only_asked_for_ahead(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 1)
    # beyond its end too: a reader of the format will see
    wanted = [Range(path, offset, None) for offset in range(0, 9_000, 100)]
    with Ranges(wanted) as found:
        assert list(found) == wanted


def test_files_that_are_lost_cut_or_no_files_are_named(tmp_path: Path) -> None:
    (path,) = files(tmp_path, 1)
    lost, folder = str(tmp_path / "lost.tar"), str(tmp_path)
    repair = "; repair or restore the file and run the same command again, it continues"
    for place, words in (
        (Range(lost, 0, 10), f"{lost}: cannot be read (No such file or directory)"),
        (Range(folder, 0, 10), f"{folder}: cannot be read (Is a directory)"),
        (Range(path, 4_000, 2_000), f"{path}: ends 1,000 bytes before the image at byte 4,000 does"),
        (Range(path, 7_000, 1), f"{path}: ends 1 bytes before the image at byte 7,000 does"),
    ):
        with Ranges([None, *[place] * (2 * ranges.AHEAD)]) as found, pytest.raises(UnreadableError) as error:
            [found.read(of) for of in found if of]
        assert str(error.value) == words + repair


def test_the_first_trouble_of_a_file_is_that_of_the_range_that_is_read(tmp_path: Path) -> None:
    """What is asked for ahead may fail; what comes before it is read all the same."""
    (path,) = files(tmp_path, 1)
    with Ranges([Range(path, 0, 100)] * ranges.AHEAD + [Range(str(tmp_path / "lost.tar"), 0, 1)]) as found:
        read = [found.read(of) for of, _ in zip(found, range(ranges.AHEAD), strict=False)]
    assert len(read) == ranges.AHEAD


def test_an_interrupt_ends_it_whoever_reads_the_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = files(tmp_path, 1)
    with Ranges([None, Range(path, 0, None), None]) as found:
        of = iter(found)
        next(of)
        monkeypatch.setattr(interrupts, "_ASKED", [signal.SIGINT])
        with pytest.raises(interrupts.Interrupted):
            next(of)


def test_files_that_fit_are_opened_once_and_asked_for_from_the_first_range_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = storage.open_read
    monkeypatch.setattr(storage, "open_read", lambda path: opened.append(path) or real(path))
    paths = list(files(tmp_path, 3 * ranges.AHEAD))
    with Ranges([Range(path, 0, 10) for path in paths * 3]) as found:
        of = iter(found)
        for count, wanted in enumerate(of):
            if count == 0 and hasattr(os, "posix_fadvise"):
                assert opened == paths[: ranges.AHEAD + 1]
            found.read(wanted)
    assert opened == paths


def test_a_file_with_a_stamp_has_to_be_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"one")
    wanted = Range(str(path), 0, 3, storage.stamp(str(path)))
    with Ranges([wanted]) as read:
        assert read.read(wanted) == b"one"
        os.utime(path, ns=(1, 1))
        with pytest.raises(UnreadableError, match="image: changed since the run began to read it"):
            read.read(wanted)

"""Batches: the same pairs and pixels whatever the number of workers and ranks, from wherever a run goes on; nothing is
skipped in silence.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.errors import AltalignError, UnreadableError, UsageError
from altalign.train.data import augment, loader, tokenizer
from altalign.train.data.batches import Batch, padded
from altalign.train.data.loader import Undecodable, batches
from altalign.train.data.order import DistinctImages, OneSource, Order, Sampler
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.settings.training import DataSettings, TokenizerSettings
from tests.support.run_folders import Pair, pairs, write_run

SETTINGS = {"resize_px": 20, "crop_px": 16}
ZEROVL = {
    **{"resize_px": 40, "crop_px": 32, "crop_area_at_least": 0.6, "auto_augment": True, "word_corruption": 0.5},
    **{"flip": False, "sampling": "one_source"},
}
BROKEN = {3, 17, 18}  # numbers of pairs whose image does not decode


@dataclass
class Data:
    """A run of 50 pairs, and what is made of it."""

    samples: Samples
    tokenizer: CaptionTokenizer
    by_key: dict[str, Pair]
    settings: dict[str, Any] = field(default_factory=lambda: SETTINGS)

    def sampler(self, size: int = 12) -> Sampler | OneSource:
        kind = OneSource if self.settings.get("sampling") else Sampler
        return kind(Order(self.samples.sources, {}, 3), size)

    def batches(self, *, workers: int = 0, sampler: Sampler | None = None, **given: object) -> list[Batch]:
        return list(self.iterator(workers=workers, sampler=sampler, **{"after_batch": 10, **given}))

    def iterator(
        self, *, workers: int = 0, sampler: Sampler | None = None, **given: object
    ) -> Generator[Batch, None, None]:
        chosen = DataSettings(**self.settings, workers=workers)
        defaults = {"seed": 3, "first_batch": 0, "undecodable": no_undecodable}
        return batches(self.samples, sampler or self.sampler(), self.tokenizer, chosen, **{**defaults, **given})


def no_undecodable(found: Undecodable) -> None:
    raise AssertionError(found)


def made(folder: Path, of: list[Pair], settings: dict[str, Any] = SETTINGS, **words: int) -> Data:
    samples = Samples.open(str(folder / "index"), [write_run(folder / "run", of)])
    trained = tokenizer.train(samples.captions, TokenizerSettings(**{"vocabulary_size": 100, **words}))
    return Data(samples, trained, {pair.key: pair for pair in of}, settings)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    of = pairs(50, sources=("a", "b"))
    long = [
        Pair(pair.image, f"{pair.caption} {'and another kite ' * (number % 4)}".strip(), pair.url, pair.source)
        for number, pair in enumerate(of)
    ]
    return made(tmp_path_factory.mktemp("data"), long)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Data:
    of = pairs(50, sources=("a", "b"))
    harmed = [
        Pair(pair.image[:100] if number in BROKEN else pair.image, pair.caption, pair.url, pair.source)
        for number, pair in enumerate(of)
    ]
    return made(tmp_path_factory.mktemp("damaged"), harmed)


def plain(batch: Batch) -> list[tuple[Any, ...]]:
    """What there is of each pair, without padding."""
    columns = (batch.keys, batch.sources, batch.epochs, batch.images, batch.tokens, batch.mask)
    return [
        (key, source, epoch, image.numpy().tobytes(), tokens[mask].tolist())
        for key, source, epoch, image, tokens, mask in zip(*columns, strict=True)
    ]


def test_batches_have_what_sampler_augmentation_and_tokenizer_say(data: Data) -> None:
    found = data.batches()
    assert len(found) == 10
    for number, batch in enumerate(found):
        numbers, epochs = data.sampler().batch(number)
        keys = [key_of(row) for row in data.samples.pairs(numbers)]
        assert (batch.keys, batch.epochs, len(batch)) == (keys, epochs.tolist(), 12)
        assert batch.sources == [data.by_key[key].source for key in keys]
        for key, epoch, image in zip(batch.keys, batch.epochs, batch.images, strict=True):
            chosen = DataSettings(**SETTINGS)
            expected = augment.training_pixels(data.by_key[key].image, chosen, seed=3, epoch=epoch, key=key)
            assert image.equal(expected)
        assert [
            tokens[mask].tolist() for tokens, mask in zip(batch.tokens, batch.mask, strict=True)
        ] == data.tokenizer.encode([data.by_key[key].caption for key in keys])
    assert found[0].images.dtype == torch.uint8
    assert found[0].images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["data", "damaged", "zerovl"])
def test_ranks_share_a_global_batch_in_order_and_go_on_in_the_middle_of_an_epoch(
    name: str, ranks: int, request: pytest.FixtureRequest
) -> None:
    data, alone, together = request.getfixturevalue(name), list[Undecodable](), list[Undecodable]()
    whole = data.batches(undecodable=alone.append)
    for first in (1, 4, 7):
        together.clear()
        shares = [
            data.batches(first_batch=first, rank=rank, ranks=ranks, undecodable=together.append)
            for rank in range(ranks)
        ]
        for number, batch in enumerate(whole[first:]):
            assert [pair for share in shares for pair in plain(share[number])] == plain(batch)
        assert sorted(together, key=lambda one: (one.batch, one.place)) == [one for one in alone if one.batch >= first]
        sizes = [len(share[0]) for share in shares]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.trained
@pytest.mark.parametrize(("name", "workers"), [("damaged", 1), ("damaged", 2), ("damaged", 3), ("zerovl", 2)])
def test_workers_change_nothing(name: str, workers: int, request: pytest.FixtureRequest) -> None:
    data, alone, together = request.getfixturevalue(name), list[Undecodable](), list[Undecodable]()
    whole = data.batches(undecodable=alone.append)
    found = data.batches(workers=workers, undecodable=together.append)
    assert [plain(batch) for batch in found] == [plain(batch) for batch in whole]
    assert together == alone
    resumed = data.batches(workers=workers, first_batch=5, rank=1, ranks=3, undecodable=[].append)
    assert [plain(batch) for batch in resumed] == [plain(batch)[4:8] for batch in whole[5:]]


def test_pieces_make_the_same_batches_as_whole_ones(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = data.batches()
    monkeypatch.setattr(loader, "_PIECE", 5)
    found = data.batches()
    assert [plain(batch) for batch in found] == [plain(batch) for batch in whole]
    assert all(
        one.tokens.equal(other.tokens) and one.mask.equal(other.mask) for one, other in zip(found, whole, strict=True)
    )


def test_what_does_not_decode_is_named_and_a_spare_of_its_source_takes_its_place(damaged: Data) -> None:
    found: list[Undecodable] = []
    made = damaged.batches(undecodable=found.append)
    broken = {pair.key for number, pair in enumerate(damaged.by_key.values()) if number in BROKEN}
    drawn = [key_of(row) for number in range(10) for row in damaged.samples.pairs(damaged.sampler().batch(number)[0])]
    keys = [key for batch in made for key in batch.keys]
    assert len(keys) == 120
    places = {one.batch * 12 + one.place for one in found}
    assert places == {place for place, key in enumerate(drawn) if key in broken}
    assert [key for place, key in enumerate(keys) if place not in places] == [
        key for place, key in enumerate(drawn) if place not in places
    ]
    for one in found:
        place = one.batch * 12 + one.place
        assert one.key in broken
        assert one.spare == keys[place] not in broken
        assert (
            damaged.by_key[drawn[place]].source
            == damaged.by_key[one.spare].source
            == made[one.batch].sources[one.place]
        )
        assert one.shard.endswith(".tar")
        assert "runcated" in one.error or "remature" in one.error
    assert all(len(batch) == 12 for batch in made)


def test_the_log_has_each_once(tmp_path: Path) -> None:
    found = [Undecodable(1, place, "k", "s.tar", "bröken", "other") for place in range(3)]
    add = loader.log(str(tmp_path))
    for one in found[:2]:
        add(one)
    add = loader.log(str(tmp_path))
    for one in found:
        add(one)
    lines = (tmp_path / "undecodable.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [asdict(one) for one in found]


def test_shards_without_a_sound_image_stop_the_run(tmp_path: Path) -> None:
    data = made(tmp_path, [Pair(b"no image", pair.caption, pair.url) for pair in pairs(12)])
    with pytest.raises(UnreadableError, match="no known image format; so were 100 others"):
        data.batches(undecodable=[].append)


def test_an_image_is_once_in_a_global_batch_on_all_ranks(tmp_path: Path) -> None:
    of = pairs(60, images=15)
    data = made(tmp_path, of)
    shares = [
        data.batches(sampler=DistinctImages(data.sampler().order, 12, data.samples.images_of), rank=rank, ranks=2)
        for rank in range(2)
    ]
    for number in range(10):
        images = [data.by_key[key].image_id for share in shares for key in share[number].keys]
        assert len(set(images)) == 12


def test_fewer_pairs_than_processes_are_refused(data: Data) -> None:
    with pytest.raises(UsageError, match="global_batch = 2, and 3 processes train"):
        data.batches(sampler=data.sampler(2), rank=0, ranks=3)


def children() -> set[int]:
    """Processes that a server forked for this one: torch's own list."""
    return {process.pid for process in multiprocessing.active_children() if process.pid}


@pytest.mark.trained
def test_closing_ends_the_workers_and_errors_come_as_they_are(tmp_path: Path) -> None:
    data = made(tmp_path, pairs(50))
    running = data.iterator(workers=2)
    next(running)
    assert len(children()) == 2
    running.close()
    assert children() == set()
    tar = tmp_path / "run" / "shards" / "00002.tar"
    tar.write_bytes(bytes(tar.stat().st_size))
    with pytest.raises(UnreadableError, match=r"^[^\n]*00002.tar: .* does not have this pair[^\n]*$"):
        data.batches(workers=2, after_batch=100)
    assert children() == set()


@pytest.mark.trained
def test_workers_leave_ctrl_c_to_the_process_that_trains_and_one_that_dies_is_said_in_one_line(data: Data) -> None:
    running = data.iterator(workers=2, after_batch=1000)
    for _ in range(2):
        next(running)  # of each worker: both are at work
    for worker in children():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(worker, number)
    for _ in range(12):
        next(running)
    os.kill(min(children()), signal.SIGKILL)
    with pytest.raises(
        AltalignError, match=r"^a process that reads and decodes pairs has ended \([^\n]*\); is memory"
    ) as raised:
        list(running)
    assert type(raised.value) is AltalignError
    assert children() == set()


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=30), min_size=1, max_size=5))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_tokens_are_padded_to_a_multiple_of_eight_or_the_limit(rows: list[list[int]]) -> None:
    tokens, mask = padded(rows, 30)
    longest = max(map(len, rows))
    assert tokens.shape == mask.shape == (len(rows), min(30, (longest + 7) // 8 * 8))
    assert [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)] == rows
    assert not tokens[~mask].any()
    assert np.array_equal(mask.sum(1).numpy(), [len(row) for row in rows])


def test_a_chunk_is_a_part_of_a_batch(data: Data) -> None:
    (batch,) = data.batches(after_batch=1)
    parts = [plain(batch.chunk(first, first + 5)) for first in (0, 5, 10)]
    assert [pair for part in parts for pair in part] == plain(batch)
    assert [len(part) for part in parts] == [5, 5, 2]
    assert plain(batch.to("cpu")) == plain(batch)


def test_the_next_batch_is_made_while_one_is_trained_on(data: Data) -> None:
    expected = data.batches(after_batch=3)
    begun, closed = threading.Event(), []

    def told() -> Generator[Batch, None, None]:
        try:
            for number, batch in enumerate(expected):
                if number == 1:
                    begun.set()
                yield batch
        finally:
            closed.append(True)

    ahead = loader.ahead(told())
    assert next(ahead) is expected[0]
    assert begun.wait(60)
    assert list(ahead) == expected[1:]
    unfinished = loader.ahead(told())
    next(unfinished)
    unfinished.close()
    assert closed == [True, True]


def test_errors_of_what_is_made_ahead_come_as_they_are() -> None:
    def failing() -> Generator[Batch, None, None]:
        raise UnreadableError("00001.tar: cut")
        yield

    with pytest.raises(UnreadableError, match=r"00001.tar: cut"):
        next(loader.ahead(failing()))


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.support.run_folders import pairs
from tests.train.data.test_loader import made

if __name__ == "__main__":
    next(made(Path(sys.argv[1]), pairs(50)).iterator(workers=1, after_batch=None))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.trained
def test_workers_of_a_process_that_was_killed_end_with_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    (tmp_path / "killed.py").write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "killed.py"), str(tmp_path)], cwd=root, env=environment, stderr=subprocess.PIPE
    )
    process.communicate(timeout=800)  # as long as a worker lives, somebody may write there
    assert process.returncode == -signal.SIGKILL


# All of ZeroVL's parts ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zerovl(tmp_path_factory: pytest.TempPathFactory) -> Data:
    rest = "over the green hills of a far country " + "and back again " * 8
    of = [
        Pair(pair.image, f"{pair.caption} {number} {rest}", pair.url, pair.source)
        for number, pair in enumerate(pairs(50, sources=("a", "b", "a")))
    ]
    return made(tmp_path_factory.mktemp("zerovl"), of, ZEROVL, tokens_at_most=25)


def test_a_batch_is_of_one_source_and_a_caption_has_25_tokens_at_most(zerovl: Data) -> None:
    alone = [plain(batch) for batch in zerovl.batches()]
    assert [len({source for _, source, *_ in batch}) for batch in alone] == [1] * len(alone)
    assert {source for batch in alone for _, source, *_ in batch} == {"a", "b"}
    assert max(epoch for batch in alone for _, _, epoch, *_ in batch) >= 1
    assert max(len(tokens) for batch in alone for *_, tokens in batch) == 25

"""Batches with all of ZeroVL's parts on: the same pairs, pixels and corruptions for any ranks, workers and start."""

from typing import Any

import pytest

from altalign.train.data import tokenizer
from altalign.train.data.batches import Batch
from altalign.train.data.loader import batches
from altalign.train.data.order import OneSource, Order
from altalign.train.data.samples import Samples
from altalign.train.settings.training import DataSettings, TokenizerSettings
from tests.train.run_folders import Pair, pairs, write_run

SIZE, BATCHES = 8, 14  # a source's pairs are gone through more than once
CHOSEN = {
    "resize_px": 40,
    "crop_px": 32,
    "crop_area_at_least": 0.6,
    "auto_augment": True,
    "word_corruption": 0.5,
    "flip": False,
    "sampling": "one_source",
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    folder = tmp_path_factory.mktemp("zerovl")
    long = [
        Pair(
            pair.image,
            f"{pair.caption} {number} over the green hills of a far country " + "and back again " * 8,
            pair.url,
            pair.source,
        )
        for number, pair in enumerate(pairs(50, sources=("a", "b", "a")))
    ]
    return Samples.open(str(folder / "index"), [write_run(folder / "run", long)])


def made(samples: Samples, *, workers: int = 0, **given: Any) -> list[Batch]:
    words = tokenizer.train(samples.captions, TokenizerSettings(vocabulary_size=100, tokens_at_most=25))
    sampler, chosen = OneSource(Order(samples.sources, {}, 3), SIZE), DataSettings(**CHOSEN, workers=workers)
    given = {"first_batch": 0, "after_batch": BATCHES, "undecodable": print, **given}
    return list(batches(samples, sampler, words, chosen, seed=3, **given))


def plain(batch: Batch) -> list[tuple[object, ...]]:
    """What there is of each pair, without padding."""
    columns = (batch.keys, batch.sources, batch.epochs, batch.images, batch.tokens, batch.mask)
    return [
        (key, source, epoch, image.numpy().tobytes(), tokens[mask].tolist())
        for key, source, epoch, image, tokens, mask in zip(*columns, strict=True)
    ]


@pytest.fixture(scope="module")
def alone(samples: Samples) -> list[list[tuple[object, ...]]]:
    return [plain(batch) for batch in made(samples)]


def test_a_batch_is_of_one_source_and_a_caption_has_25_tokens_at_most(alone: list[list[tuple[Any, ...]]]) -> None:
    assert [len({source for _, source, *_ in batch}) for batch in alone] == [1] * BATCHES
    assert {source for batch in alone for _, source, *_ in batch} == {"a", "b"}
    assert max(epoch for batch in alone for _, _, epoch, *_ in batch) >= 1
    assert max(len(tokens) for batch in alone for *_, tokens in batch) == 25


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_pairs_the_pixels_and_the_corruptions(samples: Samples, alone: Any, ranks: int) -> None:
    shares = [made(samples, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert [[pair for share in shares for pair in plain(share[number])] for number in range(BATCHES)] == alone


@pytest.mark.trained
def test_workers_and_a_start_in_the_middle_of_an_epoch_change_nothing(samples: Samples, alone: Any) -> None:
    assert [plain(batch) for batch in made(samples, workers=2, first_batch=5)] == alone[5:]

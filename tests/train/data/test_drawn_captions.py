"""One caption of an image at each visit: drawn by its share as plain loops draw it, whatever form the shards have."""

import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from altalign.data import shards
from altalign.errors import UnreadableError, UsageError
from altalign.train.data import loader
from altalign.train.data.order import DistinctImages, global_batches
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples, key_of
from altalign.train.data.steps_of_pair import Seen, Trained
from altalign.train.data.training_data import prepared, samples_of
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import DataSettings, TrainConfig
from tests.support.run_folders import Pair, pairs, write_run
from tests.train.plain_draws import halves, plain_keyed

DRAWN = DataSettings(captions="drawn")
_CAPTION = 12


def several(count: int = 24) -> list[Pair]:
    """Pairs of two sources, 1 to 4 of an image, next to each other and in the order of keys."""
    of = [
        Pair(picture.image, f"caption {caption} of kite {number}", picture.url, "ab"[caption % 2])
        for number, picture in enumerate(pairs(count))
        for caption in range(number % 4 + 1)
    ]
    return sorted(of, key=lambda pair: (pair.image_id, pair.key))


def images(of: list[Pair]) -> list[list[Pair]]:
    return [list(of_image) for _, of_image in groupby(of, lambda pair: pair.image_id)]


def opened(folder: Path, of: list[Pair], data: DataSettings = DRAWN, **given: Any) -> Samples:
    run = write_run(folder / "run", of, per_shard=1000, **given)
    return Samples.open(str(folder / "index"), Runs([run], data))


def plain_drawn(of_image: list[Pair], weights: Mapping[str, float], epoch: int, seed: int) -> str:
    """The key that a visit of an image has, with a loop over its captions."""
    shares = [weights.get(pair.source, 1.0) for pair in of_image]
    if not sum(shares):
        shares = [1.0] * len(shares)
    point = (plain_keyed(seed, epoch, *halves(of_image[0].image_id), _CAPTION) >> 11) / 2**53 * sum(shares)
    for pair, share in zip(of_image, shares, strict=True):
        if point < share:
            return pair.key
        point -= share
    raise AssertionError(point)


@pytest.mark.parametrize("weights", [{}, {"a": 3.0, "b": 1.0}, {"a": 0.0, "b": 1.0}], ids=["alike", "three", "none"])
@pytest.mark.parametrize("form", ["pairs", "images"])
def test_each_visit_has_a_caption_by_its_share(weights: dict[str, float], form: str, tmp_path: Path) -> None:
    of = several()
    samples = opened(tmp_path, of, DataSettings(captions="drawn", caption_shares=weights), whole=form == "images")
    by_image = {of_image[0].image_id: of_image for of_image in images(of)}
    assert sum(samples.draws.values()) == len(by_image) == 24
    assert (len(samples), sum(samples.sources.values())) == (len(of), len(of))
    draws, found = np.arange(24), Counter[str]()
    for epoch in range(200):
        numbers = samples.drawn(draws, np.full(24, epoch), 5)
        for row in samples.pairs(numbers):
            assert key_of(row) == plain_drawn(by_image[row["image_id"].tobytes().hex()], weights, epoch, 5)
            found[key_of(row)] += 1
    for of_image in by_image.values():
        assert sum(found[pair.key] for pair in of_image) == 200
        is_drawn = [weights.get(pair.source, 1.0) > 0 for pair in of_image]
        is_drawn = is_drawn if any(is_drawn) else [True] * len(of_image)
        assert [found[pair.key] > 0 for pair in of_image] == is_drawn


def test_an_image_is_of_the_source_of_its_first_caption(tmp_path: Path) -> None:
    of = several()
    samples = opened(tmp_path, of)
    assert samples.draws == dict(sorted(Counter(of_image[0].source for of_image in images(of)).items()))
    numbers = samples.firsts(np.arange(24))
    first_sources = {of_image[0].image_id: of_image[0].source for of_image in images(of)}
    for source, row in zip(samples.sources_of(numbers), samples.pairs(numbers), strict=True):
        assert source == first_sources[row["image_id"].tobytes().hex()]


@pytest.mark.parametrize("form", ["pairs", "images"])
def test_every_caption_is_read_with_its_image(form: str, tmp_path: Path) -> None:
    of = [replace(pair, caption=f'{pair.caption} "é" \\ {"long " * 200}') for pair in several()]
    of.sort(key=lambda pair: (pair.image_id, pair.key))
    samples = opened(tmp_path, of, whole=form == "images")
    rows = samples.pairs(np.random.default_rng(3).permutation(len(of)))
    by_key = {pair.key: (pair.image, pair.caption) for pair in of}
    assert samples.read(rows) == [by_key[key_of(row)] for row in rows]
    evaluated = Samples.open(str(tmp_path / "set"), Runs([str(tmp_path / "run")]), held_out=1.0).held_out()
    expected = {of_image[0].image_id: [pair.caption for pair in of_image] for of_image in images(of)}
    assert dict(zip(evaluated.images.names, evaluated.captions, strict=True)) == expected


def test_a_tar_of_other_captions_is_named(tmp_path: Path) -> None:
    of = several()
    samples = opened(tmp_path, of, whole=True)
    tar = tmp_path / "run" / "shards" / "00000.tar"
    second = next(of_image[1] for of_image in images(of) if len(of_image) > 1)
    tar.write_bytes(tar.read_bytes().replace(second.key.encode(), b"0" * 32))
    rows = samples.pairs(np.arange(len(of)))
    (row,) = (row for row in rows if key_of(row) == second.key)
    with pytest.raises(UnreadableError, match=f"{second.key}: the tar does not have this pair"):
        samples.read(np.array([row]))


@given(st.lists(st.text(), min_size=1, max_size=5), st.binary(min_size=1, max_size=700))
def test_what_is_written_of_an_image_is_read(captions: list[str], image: bytes) -> None:
    captions = [caption.encode("utf-8", "ignore").decode() for caption in captions]
    row: dict[str, Any] = dict.fromkeys(shards.SAMPLE.names, "") | {"format": "jpeg", "preferences": None}
    row |= dict.fromkeys(("width", "height", "bytes", "words"), 1)
    rows = [{**row, "key": f"{number:032x}", "caption": caption} for number, caption in enumerate(captions)]
    file = io.BytesIO()
    writer = shards.ShardWriter(file)
    made = writer.write_all(image, rows, [1 / len(rows)] * len(rows))
    writer.end()
    (sample,) = shards.samples(io.BytesIO(file.getvalue()))
    assert (sample.image, sample.caption, sample.row) == (image, captions[0], made[0])
    assert sample.captions == {
        "captions": captions,
        "caption_keys": [row["key"] for row in rows],
        "caption_shares": [1 / len(rows)] * len(rows),
    }
    for number, caption in enumerate(captions):
        own = len(caption.encode())
        size = own if number == 0 else writer.bytes - 1024 - (512 + len(image) + -len(image) % 512 + 512)
        begin, length = shards.pair_range(512, len(image), size)
        data = file.getvalue()[begin : begin + length]
        key = f"{number:032x}"
        assert shards.read_pair(data, key=key, tar_bytes=len(image), caption_bytes=size) == (image, caption)


def config_of(folder: Path, of: list[Pair], **data: object) -> TrainConfig:
    run = write_run(folder / "run", of, per_shard=1000, whole=True)
    sections = {
        "run": {"folder": str(folder / "model"), "seed": 3},
        "data": {"runs": [run], "captions": "drawn", "resize_px": 20, "crop_px": 16, **data},
        "tokenizer": {"vocabulary_size": 100},
        "loop": {"global_batch": 6},
    }
    return TrainConfig.from_values(sections, where="test")


@pytest.mark.parametrize("sampling", ["random", "distinct_images"])
def test_an_epoch_has_each_image_once_whatever_the_workers_and_from_wherever_it_goes_on(
    sampling: str, tmp_path: Path
) -> None:
    of = several()
    config, by_key = config_of(tmp_path, of, sampling=sampling), {pair.key: pair for pair in of}
    data = prepared(config, Ranks(0, 1, torch.device("cpu")), say=lambda _: None)

    def batches(first: int, workers: int) -> list[tuple[list[str], list[int], bytes, bytes]]:
        chosen = config.data.model_copy(update={"workers": workers})
        sampler = global_batches(config, data.samples)
        found = loader.batches(
            data.samples,
            sampler,
            data.tokenizer,
            chosen,
            seed=3,
            first_batch=first,
            after_batch=8,
            undecodable=lambda lost: pytest.fail(str(lost)),
        )
        return [(one.keys, one.epochs, one.images.numpy().tobytes(), one.tokens.numpy().tobytes()) for one in found]

    whole = batches(0, 0)
    assert batches(0, 2) == whole
    assert batches(3, 0) == whole[3:]
    visits = [visit for keys, epochs, *_ in whole for visit in zip(keys, epochs, strict=True)]
    seen = [(by_key[key].image_id, epoch) for key, epoch in visits]
    assert Counter(seen) == Counter({(image, epoch): 1 for image, _ in seen for epoch in (0, 1)})
    assert len({key for keys, *_ in whole for key in keys}) > 24  # the second epoch has other captions
    assert isinstance(data.sampler, DistinctImages) == (sampling == "distinct_images")


def test_the_steps_of_a_caption_are_those_in_which_it_was_drawn(tmp_path: Path) -> None:
    of = several()
    config = config_of(tmp_path, of)
    samples = samples_of(config)
    sampler, trained, expected = global_batches(config, samples), Trained(config), list[Seen]()
    for number in range(12):
        draws, epochs = sampler.batch(number)
        keys = [key_of(row) for row in samples.pairs(samples.drawn(draws, epochs, 3))]
        expected += [Seen(number + 1, int(epoch), key) for key, epoch in zip(keys, epochs, strict=True)]
    assert list(trained.steps(frozenset(pair.key for pair in of), 12)) == expected
    some = frozenset(pair.key for pair in of[::3])
    assert list(trained.steps(some, 12)) == [seen for seen in expected if seen.key in some]


def test_shares_are_those_of_the_run_unless_the_training_has_others(tmp_path: Path) -> None:
    of = several()
    run = Path(write_run(tmp_path / "run", of, per_shard=1000))
    inputs = "".join(f'[[input]]\nname = "{name}"\npaths = ["{name}.warc"]\n' for name in "ab")
    shares = 'captions = "all"\ncaption_shares = {a = 1, b = 0}\n'
    (run / "config.toml").write_text(f'[run]\nfolder = "{run}"\n{inputs}[shards]\n{shares}')
    table = pq.read_table(run / "shards" / "00000.parquet")
    for own, expected in (({}, {"a": 1, "b": 0}), ({"a": 2, "b": 5}, {"a": 2, "b": 5})):
        runs = Runs([str(run)], DataSettings(captions="drawn", caption_shares=own))
        assert runs.shares(0, table).tolist() == [expected[pair.source] for pair in of]
    with pytest.raises(UsageError, match=r"\[data\] caption_shares: no share for b; give each source one, 0 to leave"):
        Runs([str(run)], DataSettings(captions="drawn", caption_shares={"a": 1})).shares(0, table)

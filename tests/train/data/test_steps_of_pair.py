"""Which steps saw a pair: beside the batches that a training takes."""

from pathlib import Path

import numpy as np
import pytest

from altalign.train.data.order import global_batches
from altalign.train.data.steps_of_pair import Seen, Trained
from altalign.train.data.training_data import samples_of
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import pairs, write_run


def config_of(folder: Path, **data: object) -> TrainConfig:
    sections = {
        "run": {"folder": str(folder / "model"), "seed": 3},
        "data": {"runs": [str(folder / "run")], "held_out": 0.2, **data},
        "loop": {"global_batch": 6},
    }
    return TrainConfig.from_values(sections, where="test")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"sampling": "sequential"},
        {"sampling": "one_source"},
        {"sampling": "distinct_images"},
        {"source_weights": {"a": 0.8, "b": 0.2}},
        {"where": "bytes > 500", "weight_by": "bytes"},
    ],
    ids=["random", "sequential", "one_source", "distinct", "weights", "chosen"],
)
def test_the_steps_of_every_pair_are_those_of_the_batches(data: dict[str, object], tmp_path: Path) -> None:
    write_run(tmp_path / "run", pairs(60, images=40, sources=("a", "b")))
    config = config_of(tmp_path, **data)
    samples = samples_of(config)
    keys = [row["key"].tobytes().hex() for row in samples.pairs(np.arange(len(samples), dtype=np.int64))]
    trained, steps = Trained(config), 25
    sampler = global_batches(config, samples)
    expected: dict[str, list[Seen]] = {key: [] for key in keys}
    for number in range(steps):
        for pair, epoch in zip(*sampler.batch(number), strict=True):
            expected[keys[pair]].append(Seen(number + 1, int(epoch), keys[pair]))
    assert sum(map(len, expected.values())) == steps * 6
    for key in keys:
        assert trained.trained_on(frozenset([key])) == {key}
        assert list(trained.steps(frozenset([key]), steps)) == expected[key]


def test_what_was_held_out_or_is_unknown_is_in_no_step(tmp_path: Path) -> None:
    there = pairs(60)
    write_run(tmp_path / "run", there)
    config = config_of(tmp_path)
    samples_of(config)
    trained = Trained(config)
    keys = frozenset(pair.key for pair in there)
    trained_on, held_out = trained.trained_on(keys), trained.held_out(keys)
    assert held_out
    assert held_out | trained_on == keys
    assert not held_out & trained_on
    assert trained.trained_on(frozenset(["0" * 32])) == set()
    assert list(trained.steps(frozenset(), 100)) == []

"""`altalign nlip noise` of a small run: losses by plain loops, the table, the report, a stop, what is refused."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.train import loop
from altalign.train.data import by_key, noise_estimates
from altalign.train.data.noise_estimates import table_of
from altalign.train.exchange import encoders
from altalign.train.nlip import noise, phases
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import pairs, write_run
from tests.support.trained_folders import write_trained
from tests.train.pairs import drawn, plain_losses

SMALL = {
    "data": {"resize_px": 36, "crop_px": 32, "workers": 0},
    "tokenizer": {"vocabulary_size": 60, "tokens_at_most": 12},
    "image_tower": {"architecture": "vit_ti16", "width": 0.34, "depth": 0.1, "positions_px": 32, "embedding_width": 16},
    "text_tower": {"layers": 1, "width": 16, "heads": 2},
    "loss": {"label_smoothing": 0.0, "directions": "mean"},
    "schedule": {"steps": 4, "warmup_steps": 0},
    "loop": {"global_batch": 8, "chunk": 8, "precision": "float32", "device": "cpu"},
}


def small(tmp_path: Path, count: int = 30) -> str:
    """A training run with random weights, of a curated run; its folder."""
    write_run(tmp_path / "curated", pairs(count))
    data = SMALL["data"] | {"runs": [str(tmp_path / "curated")]}
    return write_trained(tmp_path / "run", **{**SMALL, "data": data, "loss": {"temperature": 0.05}})


def test_losses_alone_are_those_of_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_ROWS", 4)
    images, texts = drawn(11)
    sigma = torch.tensor(0.1, dtype=torch.float64)
    expected = plain_losses(images, texts, sigma, label_smoothing=0.0, directions="mean")
    torch.testing.assert_close(noise.alone(images, texts, sigma), expected, rtol=1e-12, atol=1e-12)


def test_every_pair_has_the_loss_of_its_fixed_batch(tmp_path: Path) -> None:
    run = small(tmp_path)
    assert noise.measure(run, batch=8) == 0
    table = pq.read_table(Path(run, noise_estimates.FILE)).to_pydict()
    by_key = {pair.key: pair for pair in pairs(30)}
    assert table["key"] == sorted(by_key)
    of = encoders.opened(run, device="cpu")
    sigma = encoders.trained(run).model.temperature.value().detach()
    for first, after in ((0, 7), (7, 15), (15, 22), (22, 30)):  # four batches of 8, about
        batch = [by_key[key] for key in table["key"][first:after]]
        images, texts = of.encode_image(of.pixels([p.image for p in batch])), of.encode_text([p.caption for p in batch])
        expected = plain_losses(images, texts, sigma, label_smoothing=0.0, directions="mean")
        np.testing.assert_allclose(table["loss"][first:after], expected.detach().numpy(), rtol=1e-4)
    assert "Noise of pairs" in Path(run, "report.html").read_text()


def test_a_measurement_that_was_stopped_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "_BATCHES_OF_A_PART", 1)
    run = small(tmp_path)
    noise.measure(run, batch=8)
    place = Path(table_of(encoders.trained(run).config))
    whole = place.read_bytes()
    storage.delete(str(place.parent))
    of_batch, calls = noise.losses_of, []

    def stopped(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return of_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(noise, "losses_of", stopped)
    with pytest.raises(KeyboardInterrupt):
        noise.measure(run, batch=8)
    assert not place.exists()
    noise.measure(run, batch=8)
    assert len(calls) == 3 + 2  # of four batches two had been kept
    assert place.read_bytes() == whole
    assert not (place.parent / "parts").exists()


def test_an_image_that_cannot_be_decoded_has_no_loss_and_trains_nobody(tmp_path: Path) -> None:
    of = pairs(12)
    broken = of[3].image[: len(of[3].image) // 2]
    write_run(tmp_path / "curated", [*of[:3], type(of[3])(broken, of[3].caption, of[3].url), *of[4:]])
    data = SMALL["data"] | {"runs": [str(tmp_path / "curated")]}
    run = write_trained(tmp_path / "run", **{**SMALL, "data": data})
    noise.measure(run)
    rows = {row["key"]: row for row in pq.read_table(Path(run, noise_estimates.FILE)).to_pylist()}
    assert rows[of[3].key] == {"key": of[3].key, "loss": None, "eps": None}
    assert sum(row["loss"] is None for row in rows.values()) == 1
    estimates = by_key.opened(
        by_key.path_of(run, noise_estimates.FILE), str(tmp_path / "noise.arrow"), "eps", "[noise] estimates"
    )
    assert estimates.floats([of[3].key]).tolist() == [0]


def test_estimates_are_found_by_key_whatever_the_order(tmp_path: Path) -> None:
    place = str(tmp_path / "some.parquet")
    keys = [f"{number * 7919 % 97:032x}" for number in range(60)]
    eps = np.linspace(0, 1, 60, dtype=np.float32)
    noise_estimates.write(place, by_key.numbers_of(keys), eps, eps)
    estimates = by_key.opened(place, str(tmp_path / "noise.arrow"), "eps", "[noise] estimates")
    assert estimates.floats(keys[::-1]).tolist() == eps[::-1].tolist()
    assert estimates.values([f"{98:032x}", keys[0], "f" * 32]) == [None, 0.0, None]


def test_what_is_no_estimate_is_named(tmp_path: Path) -> None:
    opened = partial(by_key.opened, place=str(tmp_path / "noise.arrow"), column="eps", setting="[noise] estimates")
    with pytest.raises(
        UsageError, match=r"\[noise\] estimates: .*losses.parquet: no such file; `altalign nlip noise RUN`"
    ):
        opened(by_key.path_of(f"run:{tmp_path}", noise_estimates.FILE))
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(UnreadableError, match=r"\[noise\] estimates: .*x.parquet: no columns key, eps"):
        opened(str(tmp_path / "x.parquet"))
    with pytest.raises(UsageError, match=r"smoothing = 0\.5 without estimates"):
        TrainConfig.from_values({"noise": {"smoothing": 0.5}}, where="x")
    with pytest.raises(UsageError, match="the loss takes one; give 0"):
        TrainConfig.from_values({"noise": {"smoothing": 0.5, "estimates": "x"}}, where="x")


def test_a_run_of_other_pairs_is_refused(tmp_path: Path) -> None:
    run = small(tmp_path)
    noise.measure(run)
    write_run(tmp_path / "others", pairs(12, first=100))
    data = SMALL["data"] | {"runs": [str(tmp_path / "others")]}
    smoothed = {"estimates": f"run:{run}", "smoothing": 0.5}
    values = {**SMALL, "data": data, "noise": smoothed, "run": {"folder": str(tmp_path / "second")}}
    with pytest.raises(UsageError, match="none of 12 of the 12 pairs"):
        loop.train(TrainConfig.from_values(values, where="x"))


def phased(tmp_path: Path, folder: str) -> TrainConfig:
    phases_ = [
        {"name": "warm-up", "settings": {"schedule": {"steps": 3}}},
        {"name": "estimate", "does": "noise"},
        {
            "name": "noise-aware",
            "settings": {
                "run": {"start": "phase:warm-up"},
                "noise": {"estimates": "phase:warm-up", "smoothing": 0.5},
                "schedule": {"steps": 3},
                "optimizer": {"weight_decay": 0.5},
            },
        },
    ]
    data = SMALL["data"] | {"runs": [str(tmp_path / "curated")]}
    values = {**SMALL, "data": data, "phases": phases_, "run": {"folder": str(tmp_path / folder)}}
    return TrainConfig.from_values(values, where="x")


def test_phases_begin_where_others_ended_and_go_to_the_one_that_is_named(tmp_path: Path) -> None:
    whole = phased(tmp_path, "whole")
    assert phases.of_phase(whole, "noise-aware").run.start == f"run:{tmp_path}/whole/phases/warm-up"
    with pytest.raises(UsageError, match="--until x: no such phase; there are warm-up, estimate, noise-aware"):
        phases.train(whole, until="x")


@pytest.mark.trained
def test_a_phase_begins_with_the_weights_and_moments_of_the_one_before(tmp_path: Path) -> None:
    write_run(tmp_path / "curated", pairs(30))
    config = phased(tmp_path, "run")
    phases.train(config, until="estimate")
    from altalign.train.run.ranks import Ranks
    from altalign.train.step.learner import Learner

    second = phases.of_phase(config, "noise-aware")
    before = encoders.trained(str(tmp_path / "run" / "phases" / "warm-up"))
    learner = Learner(second, vocabulary=before.tokenizer.vocabulary, ranks=Ranks(0, 1, torch.device("cpu")))
    loop.started(second, learner)
    for name, value in before.model.state_dict().items():
        assert torch.equal(value, learner.model.state_dict()[name]), name
    assert {group["weight_decay"] for group in learner.optimizer.param_groups} == {0.0, 0.5}
    assert learner.optimizer.state


def test_a_phase_that_is_not_before_another_is_refused(tmp_path: Path) -> None:
    values = {"phases": [{"name": "a", "settings": {"run": {"start": "phase:b"}}}, {"name": "b"}]}
    config = TrainConfig.from_values({**values, "run": {"folder": str(tmp_path / "x")}}, where="x")
    with pytest.raises(UsageError, match=r"\[\[phases\]\] a: phase:b: no phase before it that trains; there are none"):
        phases.train(config)
    assert not (tmp_path / "x").exists()

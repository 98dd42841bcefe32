"""A step that may not be taken, and what is kept of it."""

import json
from pathlib import Path

import pytest
import torch

from altalign.errors import AltalignError
from altalign.train import loop
from altalign.train.data.batches import Batch, padded
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step import optimizers
from altalign.train.step.learner import Learner, NotFiniteError

CONFIG = {
    "image_tower": {"width": 0.25, "depth": 0.25, "architecture": "b0", "embedding_width": 8, "ghost_group": 2},
    "text_tower": {"layers": 1, "width": 8, "heads": 2},
    "loop": {"global_batch": 4, "chunk": 4, "precision": "float32", "device": "cpu"},
}


def drawn(count: int) -> Batch:
    """Pairs of random pixels and tokens."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 64, 64), generator=generator, dtype=torch.uint8)
    keys = [f"{number:032x}" for number in range(count)]
    return Batch(
        keys, ["web"] * count, [0] * count, images, *padded([[2, 5 + number, 3] for number in range(count)], 8)
    )


def test_a_gradient_that_is_no_number_is_not_stepped_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig.model_validate({**CONFIG, "run": {"folder": str(tmp_path)}})
    learner = Learner(config, vocabulary=50, ranks=Ranks(0, 1, torch.device("cpu")))
    before = {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}
    monkeypatch.setattr(optimizers, "gradient_norm", lambda *_: torch.tensor(torch.inf))
    with pytest.raises(NotFiniteError, match="step 100: the gradient's norm is inf"):
        learner.step(100, drawn(4))
    assert all(torch.equal(before[name], parameter) for name, parameter in learner.model.named_parameters())


def test_each_process_keeps_the_pairs_of_a_step_that_failed(tmp_path: Path) -> None:
    class Failing:
        def step(self, number: int, batch: object, *, sources: object) -> None:  # noqa: ARG002
            raise NotFiniteError(f"step {number}: the loss is nan")

    config = TrainConfig.model_validate({"run": {"folder": str(tmp_path)}})
    batch = drawn(4)
    for rank in range(2):
        with pytest.raises(
            AltalignError, match=f"step 7: the loss is nan; its pairs are in .*not-finite-step-7-rank-{rank}.json"
        ):
            loop._stepped(
                config, Failing(), 7, batch.chunk(2 * rank, 2 * rank + 2), Ranks(rank, 2, torch.device("cpu")), []
            )  # type: ignore[arg-type]
    kept = [json.loads((tmp_path / "log" / f"not-finite-step-7-rank-{rank}.json").read_text()) for rank in range(2)]
    assert [key for facts in kept for key in facts["keys"]] == batch.keys


def test_a_step_in_bfloat16_is_near_one_in_float32_and_leaves_float32() -> None:
    said = {}
    for precision in ("float32", "bfloat16"):
        config = TrainConfig.model_validate({**CONFIG, "loop": {**CONFIG["loop"], "precision": precision, "chunk": 2}})
        learner = Learner(config, vocabulary=50, ranks=Ranks(0, 1, torch.device("cpu")))
        said[precision] = learner.step(100, drawn(4))
        assert {parameter.dtype for parameter in learner.model.parameters()} == {torch.float32}
        assert said[precision]["drift"] == 0
    assert said["bfloat16"]["loss"] == pytest.approx(said["float32"]["loss"], rel=0.02)
    assert said["bfloat16"]["loss"] != said["float32"]["loss"]
    assert 0 < said["bfloat16"]["gradient_norm"] < float("inf")

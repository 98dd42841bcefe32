"""The learner: a step that may not be taken, how a device computes, rates of steps, negatives by source."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from altalign.errors import AltalignError
from altalign.train import loop
from altalign.train.data.batches import Batch, padded
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import Precision, ScheduleSettings, TrainConfig
from altalign.train.step import optimizers
from altalign.train.step.accumulation import StepResult
from altalign.train.step.learner import Learner, NotFiniteError, autocast, negatives_by_source, prepare, rate_of
from altalign.train.step.loss import negatives_log_p
from tests.train.pairs import drawn as embeddings_drawn

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
            AltalignError, match=r"step 7: the loss is nan; its pairs are in .*not-finite-step-7-rank-\*\.json"
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


BACKENDS = torch.backends.cudnn


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = BACKENDS.benchmark, BACKENDS.allow_tf32, torch.get_float32_matmul_precision()
    yield
    BACKENDS.benchmark, BACKENDS.allow_tf32 = before[:2]
    torch.set_float32_matmul_precision(before[2])


@pytest.mark.parametrize(
    ("precision", "is_rounded", "products"),
    [("float32", False, "highest"), ("tf32", True, "high"), ("bfloat16", False, "highest")],
)
def test_a_gpu_searches_convolutions_and_rounds_factors_as_the_precision_says(
    precision: Precision, products: str, *, is_rounded: bool
) -> None:
    prepare(precision, torch.device("cuda"))
    assert BACKENDS.benchmark
    assert BACKENDS.allow_tf32 == is_rounded
    assert torch.get_float32_matmul_precision() == products


def test_a_cpu_stays_as_it_is() -> None:
    BACKENDS.benchmark = False
    torch.set_float32_matmul_precision("medium")
    prepare("tf32", torch.device("cpu"))
    assert not BACKENDS.benchmark
    assert torch.get_float32_matmul_precision() == "medium"


@pytest.mark.parametrize(("precision", "kind"), [("tf32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_towers_compute_in_bfloat16_alone_where_they_are_told_to(precision: Precision, kind: torch.dtype) -> None:
    with autocast(precision, torch.device("cpu"))():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == kind


ALIGN = ScheduleSettings()
SHORT = {"steps": 12, "peak": 1.0, "warmup_steps": 4}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.0),
        (1, 1e-7),
        (5_000, 5e-4),
        (9_999, 9.999e-4),
        (10_000, 1e-3),
        (605_000, 5e-4),
        (1_199_999, 1e-3 / 1_190_000),
        (1_200_000, 0.0),
    ],
)
def test_the_papers_schedule(step: int, expected: float) -> None:
    assert rate_of(step, ALIGN) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"decay": "linear"}, [0, 0.25, 0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0, 0]),
        (
            {"decay": "linear", "floor": 0.5},
            [0, 0.25, 0.5, 0.75, 1, 0.9375, 0.875, 0.8125, 0.75, 0.6875, 0.625, 0.5625, 0.5, 0.5],
        ),
        (
            {"decay": "cosine"},
            [0, 0.25, 0.5, 0.75, 1, 0.96194, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.03806, 0, 0],
        ),
        ({"decay": "constant"}, [0, 0.25, 0.5, 0.75, *[1] * 10]),
        (
            {"decay": "step", "every": 3},
            [0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 0.2, 0.2, 0.2, 0.04, 0.04, 0.04],
        ),
        ({"decay": "linear", "warmup_steps": 0, "steps": 2}, [1, 0.5, 0]),
        ({"decay": "step", "warmup_steps": 0, "every": 2}, [1, 1, 1, 0.2, 0.2, 0.04]),
        ({"decay": "linear", "warmup_steps": 2, "steps": 2}, [0, 0.5, 1]),  # nothing is left to fall in
    ],
)
def test_rates_of_every_step(settings: dict[str, object], expected: list[float]) -> None:
    chosen = ScheduleSettings.from_values({**SHORT, **settings}, where="test")
    assert [rate_of(step, chosen) for step in range(len(expected))] == pytest.approx(expected, abs=1e-5)


@given(
    st.integers(1, 1000).flatmap(lambda steps: st.tuples(st.just(steps), st.integers(0, steps))),
    st.sampled_from(["linear", "cosine", "step", "constant"]),
    st.floats(1e-6, 1),
)
def test_it_grows_then_falls_and_stays_between_floor_and_peak(
    lengths: tuple[int, int], decay: str, peak: float
) -> None:
    steps, warmup = lengths
    chosen = ScheduleSettings.from_values(
        {"steps": steps, "warmup_steps": warmup, "decay": decay, "peak": peak, "every": 7}, where="test"
    )
    rates = [rate_of(step, chosen) for step in range(steps + 3)]
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert max(rates) == rates[warmup] == pytest.approx(peak)
    assert min(rates) >= 0


def test_each_source_of_the_batch_has_the_mean_of_its_pairs() -> None:
    images, texts = embeddings_drawn(6, seed=1)
    result = StepResult(loss=0.0, temperature=0.1, bias=None, drift=0.0, embeddings=(images, texts))
    own = ["one", "two", "one", "one", "two", "one"]
    of_pairs = negatives_log_p(images, texts, images.new_tensor(0.1), block=4)
    assert negatives_by_source(result, own, ["absent", "one", "two"], block=4) == pytest.approx(
        {
            "one": of_pairs[torch.tensor([0, 2, 3, 5])].mean().item(),
            "two": of_pairs[torch.tensor([1, 4])].mean().item(),
        }
    )

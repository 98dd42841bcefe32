"""Passes of image towers that a GPU records, beside those that it does not."""

import gc
import weakref
from typing import Any

import pytest
import torch

from altalign.train.data.batches import Batch
from altalign.train.model import batch_norm, passes
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import Learner, prepare

PAIRS, WORDS, VOCABULARY = 16, 8, 50
TOWERS: dict[str, dict[str, Any]] = {
    "EfficientNet": {"architecture": "b0", "ghost_group": 4},
    "ViT": {"architecture": "vit_ti16", "depth": 0.3, "positions_px": 64, "token_drop": 0.5},
}


def on_a_gpu(test: Any) -> Any:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")(test))


def learner(device: str, tower: str, *, chunk: int, loss: dict[str, Any] | None = None, **loop: Any) -> Learner:
    values = {
        "data": {"files": ["unread.tar"], "resize_px": 64, "crop_px": 64},
        "evaluation": {"crop_px": 64},
        "image_tower": {"embedding_width": 32, **TOWERS[tower]},
        "text_tower": {"layers": 2, "width": 32, "heads": 2},
        "tokenizer": {"tokens_at_most": WORDS},
        "loop": {"global_batch": PAIRS, "chunk": chunk, "precision": "float32", **loop},
        "loss": loss or {},
        "schedule": {"peak": 1e-3, "warmup_steps": 0},
    }
    config = TrainConfig.from_values(values, where="test")
    return Learner(config, vocabulary=VOCABULARY, ranks=Ranks(0, 1, torch.device(device)))


def batches(count: int, *, side: int = 64) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        images = torch.randint(256, (PAIRS, side, side, 3), generator=generator, dtype=torch.uint8).permute(0, 3, 1, 2)
        tokens = torch.randint(5, VOCABULARY, (PAIRS, WORDS), generator=generator)
        mask = torch.arange(WORDS)[None] <= torch.randint(WORDS, (PAIRS, 1), generator=generator)
        keys = [f"{number:032x}" for number in range(PAIRS)]
        made.append(Batch(keys, ["test"] * PAIRS, [0] * PAIRS, images, tokens * mask, mask))
    return made


def apart(ours: torch.nn.Module, plain: torch.nn.Module) -> float:
    """How far all state is apart, as a share of its norm."""
    states = [torch.cat([one.double().flatten() for one in model.state_dict().values()]) for model in (ours, plain)]
    return float((states[0] - states[1]).norm() / states[1].norm())


@on_a_gpu
@pytest.mark.parametrize("chunk", [PAIRS, 4])
@pytest.mark.parametrize("tower", TOWERS)
def test_recorded_passes_learn_what_others_do(tower: str, chunk: int) -> None:
    """In one pass and in two; by dropped paths that are drawn anew for each chunk and step."""
    prepare("float32", torch.device("cuda"))
    ours, plain = (learner("cuda", tower, chunk=chunk, speed=speed) for speed in ("recorded", "plain"))
    for number, batch in enumerate(batches(6), start=1):
        found, expected = (one.step(number, batch) for one in (ours, plain))
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-3)
        assert found["drift"] <= 1e-5
    moved = apart(ours.model, learner("cuda", tower, chunk=chunk).model)
    assert apart(ours.model, plain.model) < 0.01 * moved


@on_a_gpu
def test_images_of_another_size_are_recorded_anew_and_an_evaluation_is_not() -> None:
    prepare("float32", torch.device("cuda"))
    ours, plain = (learner("cuda", "EfficientNet", chunk=4, speed=speed) for speed in ("recorded", "plain"))
    for number, batch in enumerate([*batches(1), *batches(1, side=96), *batches(1)], start=1):
        assert ours.step(number, batch)["loss"] == pytest.approx(plain.step(number, batch)["loss"], rel=1e-3)
    images = batches(1)[0].images.cuda()
    with torch.no_grad():
        of_ours, of_plain = (one.model.eval().image_tower(images) for one in (ours, plain))
    torch.testing.assert_close(of_ours, of_plain, rtol=1e-2, atol=1e-3)


@on_a_gpu
def test_bfloat16_and_mixed_pairs_are_recorded_as_they_are_computed() -> None:
    """Pixels come as floats where a coin says so, and are of one kind all the same."""
    prepare("bfloat16", torch.device("cuda"))
    settings = {"chunk": 4, "precision": "bfloat16"}
    ours, plain = (
        learner("cuda", "EfficientNet", loss={"mixup": 0.3, "mixup_group": 4}, speed=speed, **settings)
        for speed in ("recorded", "plain")
    )
    for number, batch in enumerate(batches(6), start=1):
        assert ours.step(number, batch)["loss"] == pytest.approx(plain.step(number, batch)["loss"], rel=2e-2)
    recorder: Any = ours.model.image_tower.__dict__["forward"]
    assert len(recorder._passes) == 2  # with gradient and without


@pytest.mark.parametrize("tower", TOWERS)
def test_a_learner_is_gone_as_soon_as_nobody_has_it(tower: str) -> None:
    """Its graphs would keep the memory of a GPU."""
    ours = learner("cpu", tower, chunk=8, speed="recorded")
    parameter = weakref.ref(next(ours.model.image_tower.parameters()))
    gc.disable()
    try:
        del ours
        assert parameter() is None
    finally:
        gc.enable()


def test_what_fails_while_it_is_recorded_leaves_all_as_it_was() -> None:
    tower = learner("cpu", "EfficientNet", chunk=8, speed="recorded").model.image_tower
    before = dict(tower.named_parameters())

    def fail() -> None:
        with batch_norm.collecting(tower), batch_norm.sums_kept(tower), passes._twins(tower) as twins:
            assert {id(one) for one in tower.parameters()} == {id(one) for one in twins.values()}
            tower(batches(1)[0].images)
            assert batch_norm.collected(tower).abs().sum() > 0
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        fail()
    after = dict(tower.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is one for name, one in before.items())
    assert batch_norm.collected(tower).abs().sum() == 0


@pytest.mark.parametrize("tower", TOWERS)
def test_a_cpu_records_nothing(tower: str) -> None:
    ours, plain = (learner("cpu", tower, chunk=8, speed=speed) for speed in ("recorded", "plain"))
    for number, batch in enumerate(batches(2), start=1):
        assert ours.step(number, batch) == plain.step(number, batch)
    assert apart(ours.model, plain.model) == 0
    assert isinstance(ours.model.image_tower.__dict__["states" if tower == "ViT" else "forward"], passes._Recorder)

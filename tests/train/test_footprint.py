"""Memory that is foreseen, beside what tensors really take; and the chunk that fits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from altalign import cli
from altalign.errors import UsageError
from altalign.train import footprint
from altalign.train.footprint import Foreseen, largest_chunk
from altalign.train.model.compiled import BLOCKS
from altalign.train.settings import TrainConfig
from altalign.train.step import arithmetic, token_drop
from altalign.train.step.learner import Learner, Ranks, model_of
from tests.train.run_folders import pairs, write_run
from tests.train.small_towers import VOCABULARY, captions, images
from tests.train.test_training_run import weights, written

CPU = torch.device("cpu")
TOWERS: dict[str, dict[str, Any]] = {
    "EfficientNet and BERT": {},
    "bfloat16": {"loop": {"precision": "bfloat16"}},
    "activation checkpointing": {"loop": {"activation_checkpointing": True}},
    "two stages computed again": {"loop": {"checkpointed_stages": 2}},
    "a frozen tower": {"text_tower": {"frozen": True}},
    "ViT that drops tokens": {
        "image_tower": {
            "architecture": "vit_ti16", "width": 0.34, "depth": 0.25, "positions_px": 64, "token_drop": 0.25,
        },
        "optimizer": {"name": "adamw"},
    },
}  # fmt: skip


def config(**changed: dict[str, Any]) -> TrainConfig:
    values: dict[str, dict[str, Any]] = {
        "data": {"resize_px": 64, "crop_px": 64},
        "tokenizer": {"tokens_at_most": 16},
        "image_tower": {"architecture": "b0", "width": 0.5, "depth": 0.5, "ghost_group": 4},
        "text_tower": {"layers": 2, "width": 64, "heads": 2, "dropout": 0.0},
        "loop": {"global_batch": 64, "chunk": 16, "precision": "float32"},
    }
    merged = {name: {**values.get(name, {}), **changed.get(name, {})} for name in {**values, **changed}}
    return TrainConfig.from_values(merged, where="test")


@pytest.mark.trained
@pytest.mark.parametrize("towers", TOWERS)
def test_what_is_foreseen_is_what_is_kept(towers: str) -> None:
    """Within a tenth, of tensors that a real step of 16 pairs saves, and of what lives when it is over."""
    chosen = config(**TOWERS[towers])
    model = (learner := Learner(chosen, vocabulary=VOCABULARY, ranks=Ranks(0, 1, CPU))).model.train()
    of_images, kept = images(16, 64), {}
    own = {one.data_ptr() for one in (*model.parameters(), *model.buffers())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage, storage.nbytes())  # held, so that no other takes its place
        return tensor

    drop = token_drop.drawn(chosen.image_tower, seed=0, step=1)
    drawn = {} if drop is None else {"kept": drop.kept([f"{number:032x}" for number in range(16)], of_images)}
    with arithmetic.autocast(chosen.loop.precision, CPU)(), saved_tensors_hooks(keep, lambda tensor: tensor):
        tokens, _ = captions(16, 16)  # as long as they may be: a CPU keeps nothing of padding
        encoded = [part for part in model(of_images, tokens, tokens >= 0, **drawn) if part.requires_grad]
    torch.autograd.backward(encoded, [torch.ones_like(part) for part in encoded])
    learner.optimizer.step()

    found = Foreseen.of(chosen, vocabulary=VOCABULARY).footprint(16)
    assert found.activations == pytest.approx(sum(size for _, size in kept.values()), rel=0.1)
    held = [one for state in learner.optimizer.state.values() for one in state.values() if torch.is_tensor(one)]
    assert found.moments == pytest.approx(sum(one.nbytes for one in held), rel=0.01)
    of_temperature = 4  # which a step of towers alone gives none
    assert found.gradients == of_temperature + sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert found.weights == sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
    assert found.total >= found.weights + found.gradients + found.moments + found.activations


@pytest.mark.trained
def test_checkpointing_keeps_less() -> None:
    plain, less = (Foreseen.of(config(**TOWERS[name]), vocabulary=VOCABULARY) for name in list(TOWERS)[0:3:2])
    assert less.footprint(16).activations < 0.5 * plain.footprint(16).activations
    assert less.footprint(16).total < plain.footprint(16).total


@pytest.mark.trained
def test_attention_keeps_no_weights_on_a_gpu_where_some_are_dropped_too() -> None:
    """On a CPU it does; and what is computed again has to be what was there before."""
    kept, dropping = (
        [
            Foreseen.of(
                config(
                    tokenizer={"tokens_at_most": 64},
                    text_tower={"heads": 8, "dropout": dropout},
                    loop={"activation_checkpointing": again},
                ),
                vocabulary=VOCABULARY,
            ).footprint(16)
            for again in (False, True)
        ]
        for dropout in (0.0, 0.1)
    )
    # of hidden states, of which dropout keeps five; weights of attention are 24 times as many
    a_mask = 16 * 64 * 64 * 4
    for without, found in zip(kept, dropping, strict=True):
        assert without.activations <= found.activations < without.activations + 10 * a_mask


def test_the_chunk_is_the_largest_that_fits_and_no_larger_than_what_a_device_has() -> None:
    chosen = config()
    foreseen = Foreseen.of(chosen, vocabulary=VOCABULARY)
    for chunk in (4, 8, 36):
        enough = foreseen.footprint(chunk).total
        assert largest_chunk(chosen, foreseen, memory_bytes=enough, pairs=64) == chunk
        if chunk > 4:
            assert largest_chunk(chosen, foreseen, memory_bytes=enough - 1, pairs=64) == chunk - 4
    assert largest_chunk(chosen, foreseen, memory_bytes=1 << 50, pairs=30) == 32
    with pytest.raises(UsageError, match=r'chunk = "auto": 4 pairs at a time take .* and there are 0.00 GB'):
        largest_chunk(chosen, foreseen, memory_bytes=1000, pairs=64)


def test_chunks_are_whole_groups_of_batch_norm_and_mixup() -> None:
    assert footprint.unit_of(config(loss={"mixup": 0.1, "mixup_group": 8})) == 8
    assert footprint.unit_of(config(loss={"mixup": 0.1, "mixup_group": 2})) == 4


@pytest.mark.trained
def test_a_run_takes_the_chunk_that_fits_and_learns_what_one_with_that_number_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "curated", pairs(60, images=30))
    changed: dict[str, dict[str, Any]] = {"schedule": {"steps": 2, "warmup_steps": 1}, "evaluation": {"retrieval": []}}
    path = written(tmp_path, **changed, loop={"chunk": "auto"})
    assert cli.main(["train", path]) == 2
    assert '[loop] chunk = "auto" on a CPU: give memory_bytes, or a number of pairs' in capsys.readouterr().err
    foreseen = Foreseen.of(TrainConfig.load(path), vocabulary=80)
    enough = str(foreseen.footprint(8).total)
    assert cli.main(["train", path, "--dry-run", "--set", f"loop.memory_bytes={enough}"]) == 0
    assert "8 pairs of a device in its towers at a time, twice through them" in capsys.readouterr().out
    assert cli.main(["train", path, "--set", f"loop.memory_bytes={enough}"]) == 0
    (tmp_path / "trained").rename(tmp_path / "auto")
    assert cli.main(["train", written(tmp_path, **changed, loop={"chunk": 8})]) == 0
    expected = weights(tmp_path, 2)
    (tmp_path / "trained").rename(tmp_path / "eight")
    (tmp_path / "auto").rename(tmp_path / "trained")
    assert weights(tmp_path, 2) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image_tower": {"batch_norm": "local"}}, 'batch_norm = "local" takes the statistics of chunks'),
        ({"loop": {"chunk": "much"}}, "[loop] chunk"),
        ({"loop": {"chunk": -1}}, "[loop] chunk"),
    ],
)
def test_a_wrong_chunk_is_one_line(
    tmp_path: Path, changed: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {**changed, "loop": {"chunk": "auto", **changed.get("loop", {})}}
    assert cli.main(["train", written(tmp_path, **given)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_ranks_share_what_a_sharded_model_holds_but_for_the_blocks_that_are_whole_for_a_while() -> None:
    """These are what is no block, and twice the largest, in weights and gradients."""
    chosen = config(loop={"sharded": True})
    foreseen = Foreseen.of(chosen, vocabulary=VOCABULARY)
    one, four = foreseen.footprint(4), foreseen.footprint(4, ranks=4)
    for name in ("weights", "gradients", "moments", "scratch"):
        assert getattr(four, name) == -(-getattr(one, name) // 4)
    assert (four.activations, four.towers, one.gathered) == (one.activations, one.towers, 0)
    model = model_of(chosen, vocabulary=VOCABULARY)
    sizes = [sum(4 * of.numel() for of in part.parameters()) for part in model.modules() if isinstance(part, BLOCKS)]
    rest = sum(4 * of.numel() for of in model.parameters()) - sum(sizes)
    assert four.gathered == 2 * (rest + 2 * max(sizes))
    assert Foreseen.of(config(), vocabulary=VOCABULARY).footprint(4, ranks=4) == one

"""The memory of a training, measured by a step; and the chunk that fits into a GPU, of which a step is pretended."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from altalign import cli
from altalign.errors import UsageError
from altalign.train import loop
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import pairs, write_run
from tests.train.test_training_run import written

CPU = torch.device("cpu")
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "EfficientNet and BERT": {"loss": {"mixup": 0.1, "mixup_group": 2}},
    "a ViT, BART and NLIP's decoders": {
        "image_tower": {"architecture": "vit_ti16", "width": 0.34, "depth": 0.25, "positions_px": 64,
                        "token_drop": 0.25},
        "text_tower": {"architecture": "bart"},
        "reconstruction": {"weight": 1.0, "blocks": 1, "width": 64},
        "captioner": {"weight": 1.0, "layers": 1, "tokens_at_most": 12},
        "optimizer": {"name": "adamw"},
    },
}  # fmt: skip


def config(**changed: dict[str, Any]) -> TrainConfig:
    values: dict[str, dict[str, Any]] = {
        "data": {"resize_px": 64, "crop_px": 64, "runs": ["any"]},
        "tokenizer": {"tokens_at_most": 16},
        "image_tower": {"architecture": "b0", "width": 0.5, "depth": 0.5, "ghost_group": 4},
        "text_tower": {"layers": 1, "width": 64, "heads": 2},
        "loop": {"global_batch": 64, "chunk": 4, "precision": "float32"},
    }
    if "architecture" in changed.get("image_tower", {}):
        del values["image_tower"]
    merged = {name: {**values.get(name, {}), **changed.get(name, {})} for name in {**values, **changed}}
    return TrainConfig.from_values(merged, where="test")


@pytest.mark.trained
@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_is_taken_and_its_memory_measured(name: str) -> None:
    assert loop.most_of_a_step(config(**SETTINGS[name]), CPU, vocabulary=80) > 1 << 26


def test_the_chunk_is_the_first_half_of_the_batch_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def step(chosen: TrainConfig, device: torch.device, *, vocabulary: int) -> int:
        tried.append(chosen.loop.chunk)
        if chosen.loop.chunk > fitting:
            raise torch.cuda.OutOfMemoryError
        return 0

    monkeypatch.setattr(loop, "most_of_a_step", step)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=1 << 30))
    gpu, chosen, fitting = Ranks(0, 1, torch.device("cuda")), config(loop={"chunk": "auto"}), 17
    assert loop.with_chunk(chosen, gpu, vocabulary=80).loop.chunk == 16
    assert tried == [64, 32, 16]
    fitting = 3
    with pytest.raises(UsageError, match=r'chunk = "auto": a step with 4 pairs at a time does not fit'):
        loop.with_chunk(chosen, gpu, vocabulary=80)
    for ranks in (Ranks(0, 1, CPU), Ranks(0, 2, torch.device("cuda"))):
        with pytest.raises(UsageError, match='chunk = "auto" is measured by one process on a GPU'):
            loop.with_chunk(chosen, ranks, vocabulary=80)


def test_chunks_are_whole_groups_of_batch_norm_and_mixup() -> None:
    assert loop.unit_of(config(loop={"chunk": 8}, loss={"mixup": 0.1, "mixup_group": 8})) == 8
    assert loop.unit_of(config(loss={"mixup": 0.1, "mixup_group": 2})) == 4


@pytest.mark.trained
def test_a_cpu_says_what_it_knows_and_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "curated", pairs(60, images=30))
    path = written(tmp_path, loop={"chunk": 8})
    assert cli.main(["train", path, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "8 pairs of a device in its towers at a time, twice through them" in output
    assert "MB of weights, gradients and moments; what the towers need beside them is measured on a GPU" in output
    assert cli.main(["train", path, "--set", "loop.chunk=auto"]) == 2
    assert '[loop] chunk = "auto" is measured by one process on a GPU' in capsys.readouterr().err


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
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1

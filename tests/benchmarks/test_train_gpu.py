"""The benchmark of training steps on a GPU, tried out on the CPU at tiny sizes: every contestant, every part."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from altalign.train.model.image_tower import ImageTower
from altalign.train.settings.training import ImageTowerSettings
from benchmarks import tables, train_contestants, train_gpu
from tests.docs.blocks import ROOT

TINY = [
    "--device=cpu",
    "--models=b0-mini",
    "--px=32",
    "--batches",
    "2",
    "2",
    "3",
    "--global=4",
    "--tokens=8",
    "--vocabulary=100",
    "--steps=1",
]
# Only these may be imported, with what they themselves need; nothing else of what altalign depends on.
OTHERS = [
    "aiohttp",
    "apache_beam",
    "brotli",
    "fastwarc",
    "numba",
    "orjson",
    "protego",
    "resiliparse",
    "selectolax",
    "simplejpeg",
    "tensorboard",
    "unicodedata2",
]
BLOCKED = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {OTHERS!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
from benchmarks.train_gpu import main
sys.exit(main(sys.argv[1:]))
"""


pytestmark = [
    pytest.mark.trained,
    pytest.mark.skipif(not find_spec("open_clip"), reason="no open_clip here: `make test-readers`"),
]


def _measured(out: Path, *flags: str, start: Sequence[str] = ("-m", "benchmarks.train_gpu")) -> dict[str, Any]:
    """What is written."""
    # compiling takes minutes on the CPU: what is compiled runs as it is
    environment = {**os.environ, "TORCH_COMPILE_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, *start, *TINY, *flags, "--out", str(out)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["not_measured"] == {}
    return found


def test_every_contestant_takes_steps_with_nothing_else_installed(tmp_path: Path):
    found = _measured(tmp_path / "found.json", "--parts", *train_gpu.PARTS, start=("-c", BLOCKED))
    peers = ["open_clip", "AlignModel"]
    assert set(found["figures"]) == {
        *(f"b0-mini altalign {batch}" for batch in (2, 3)),
        "b0-mini altalign, batch norm over the batch, 2",
        *(f"b0-mini altalign, {way}, {batch}" for way in ("CUDA graphs", "compiled") for batch in (2, 3)),
        *(f"b0-mini {peer}{way} 2" for peer in peers for way in ("", ", channels last,")),
        *(f"b0-mini {name}, global batch 4" for name in ("altalign", *peers[:-1])),
    }
    assert found["flops"]["b0-mini"] > 1e8
    assert [target["what"] for target in found["targets"]] == [
        "b0-mini, seconds of a global batch in two passes, times one",
        *(f"b0-mini, {way}times the samples a second of {peer}" for peer in peers for way in ("", "CUDA graphs, ")),
    ]
    assert "`b0-mini altalign 2`" in tables.shown(found)


def test_models_are_measured_in_turn_a_vit_among_them(tmp_path: Path):
    flags = [
        "--models",
        "vit_ti16-mini",
        "b0-mini",
        "--px=224",
        "--parts",
        "compiled",
        "peers",
    ]
    found = _measured(tmp_path / "found.json", *flags)
    first = [
        "vit_ti16-mini altalign, compiled, 2",
        "vit_ti16-mini open_clip, channels last, 2",
        "vit_ti16-mini open_clip, compiled, 2",
        "b0-mini open_clip, channels last, 2",
        "b0-mini AlignModel, channels last, 2",
    ]
    assert list(found["figures"])[: len(first)] == first
    assert set(found["figures"]).difference(first) == {
        "vit_ti16-mini altalign, compiled, 3",
        *(f"b0-mini altalign, compiled, {batch}" for batch in (2, 3)),
        *(f"{model} open_clip 2" for model in ("vit_ti16-mini", "b0-mini")),
        "b0-mini AlignModel 2",
    }
    assert [target["what"] for target in found["targets"]] == [
        "vit_ti16-mini, compiled, times the samples a second of open_clip",
    ]


@pytest.mark.parametrize("model", [name for name in train_gpu.BATCHES if "vit_" not in name])
def test_peers_are_as_wide_as_our_towers(model: str):
    sizes = train_contestants.Sizes(model, 289, 64, 100, 640)
    with torch.device("meta"):  # no memory: L2 takes gigabytes
        tower = ImageTower(ImageTowerSettings(architecture=sizes.architecture))
    assert sizes.features == tower.num_features


def test_what_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(train_gpu, "NEEDED", ("json", "no_such_package", "nor_this"))
    assert train_gpu.main(["--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("this needs no_such_package, nor_this, which ")
    assert said.count("\n") == 1


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train_gpu.main([]) == 1
    said = capsys.readouterr().err
    assert "sees no GPU here" in said
    assert said.count("\n") == 1

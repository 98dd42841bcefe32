"""What the guide to exchange shows, beside a model of the demo's settings."""

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks, prints
from tests.docs.test_docs import run_block
from tests.support.run_folders import picture
from tests.support.trained_folders import write_trained

GUIDE = ROOT / "docs" / "guides" / "exchange.md"


@pytest.mark.guides
@pytest.mark.trained
def test_the_guide_to_exchange_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    write_trained(
        tmp_path / "runs" / "train-demo",
        data={"resize_px": 72, "crop_px": 64},
        image_tower={"width": 0.5, "depth": 0.5, "padding": "same"},
        text_tower={"layers": 2, "width": 128, "heads": 4},
    )
    (tmp_path / "ring.jpg").write_bytes(picture(1))
    (tmp_path / "pictures").mkdir()
    for number in range(2):
        (tmp_path / "pictures" / f"{number}.jpg").write_bytes(picture(number))
    shown = [block for block in blocks(GUIDE) if block.note == "run beside a trained model"]
    assert len(shown) == 4
    for block in shown:
        code, out, err = run_block(block)
        where = f"{GUIDE.name}:{block.line}"
        assert code == (2 if "# exits 2" in block.text else 0), f"{where}\n{err}"
        assert prints(block, err if code else out), f"{where} prints\n{err if code else out}"
    python = next(block.text for block in shown if block.kind == "python")
    assert len(re.findall(r"^.+$", python, re.MULTILINE)) <= 10

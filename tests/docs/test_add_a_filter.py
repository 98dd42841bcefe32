"""The guide to adding a filter is true: its steps, applied to a copy of the repository, add the rule, and its commands
run there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.blocks import ROOT, Block, blocks, prints

GUIDE = blocks(ROOT / "docs" / "guides" / "add-a-filter.md")
COPIED = (
    "altalign",
    "filters",
    "dedup",
    "pipelines",
    "eval",
    "train",
    "docs",
    "tests",
    "configs",
    "examples",
    "tools",
)
NOTE = "in the copy"

# The guide's commands by what they are here: `make docs` would first set up an environment.
COMMANDS = {
    "altalign ": "$PYTHON -m altalign.cli ",
    "make docs": "$PYTHON docs/make_reference.py",
    ".venv/bin/python ": "$PYTHON ",
}


def apply(block: Block, folder: Path) -> None:
    """Make the changes of a block: the lines of each hunk that are not new stand in its file once, and its lines that
    are not old replace them.
    """
    for section in re.split(r"^\+\+\+ ", block.text, flags=re.MULTILINE)[1:]:
        name, *hunks = re.split(r"\n@@\n", section.rstrip("\n"))
        path = folder / name
        for hunk in hunks:
            lines = hunk.split("\n")
            old, new = ("".join(f"{line[1:]}\n" for line in lines if line[:1] != other) for other in "+-")
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"line {block.line}: {name} has {text.count(old)} times\n{old}"
            path.write_text(text.replace(old, new), encoding="utf-8")


def run(block: Block, folder: Path) -> str:
    script = block.text
    for command, here in COMMANDS.items():
        script = re.sub(f"^{re.escape(command)}", lambda _, here=here: here, script, flags=re.MULTILINE)
    env = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHON": sys.executable,
        "COLUMNS": "160",
        "PYTEST_DEBUG_TEMPROOT": str(folder.parent),
    }
    done = subprocess.run(["bash", "-euc", script], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"line {block.line}\n{done.stdout[-4_000:]}\n{done.stderr[:1_000]}"
    return done.stdout


CONFIG = """
[run]
folder = "runs/pictures"

[[input]]
kind = "folder"
paths = ["pictures"]

[text]
urls_at_most = 0
"""
CAPTIONS = ("a red bicycle there", "more of them at https://pictures.example", "a kettle on a stove")
COMMANDS_OF_A_RUN = """
altalign curate pictures.toml
altalign explain runs/pictures --text "more of them at https://pictures.example"
altalign audit runs/pictures
"""


def assert_the_rule_is_known_everywhere(folder: Path) -> None:
    """Curate three images in the copy, and look for the rule in all that names rules."""
    (folder / "pictures").mkdir()
    for number, caption in enumerate(CAPTIONS):
        coarse = np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)
        Image.fromarray(coarse).resize((320, 300)).save(folder / "pictures" / f"{number}.png")
        (folder / "pictures" / f"{number}.txt").write_text(caption, encoding="utf-8")
    (folder / "pictures.toml").write_text(CONFIG, encoding="utf-8")
    printed = run(Block("sh", NOTE, COMMANDS_OF_A_RUN, None, 0), folder)
    assert "- text_has_url: [text] urls_at_most = 0" in printed
    of_run = folder / "runs" / "pictures"
    summary = json.loads((of_run / "summary.json").read_text(encoding="utf-8"))
    assert {each["stage"]: each["dropped"] for each in summary["stages"]}["judge"] == {"text_has_url": 1}
    checks = json.loads((of_run / "audit" / "checks.json").read_text(encoding="utf-8"))
    assert [check["passed"] for check in checks["checks"] if check["name"] == "text_has_url"] == [True]
    card = (of_run / "README.md").read_text(encoding="utf-8")
    assert ": more web addresses in the caption" in card
    page = (of_run / "report.html").read_text(encoding="utf-8")
    assert "A web address says nothing about the image." in page  # fidelity
    assert "text.urls_at_most = 0" in page  # the reason in the funnel


@pytest.mark.guides
def test_the_steps_add_the_rule_and_the_commands_say_what_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "altalign"
    for name in COPIED:  # with compiled kernels and the times of files, by which those are known
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("hostile"))
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy2(path, folder)
    kinds = [(block.kind, block.note) for block in GUIDE if block.kind != "text"]
    assert set(kinds) == {("diff", ""), ("sh", NOTE)}
    for block in GUIDE:
        if block.kind == "diff":
            apply(block, folder)
        elif block.kind == "sh":
            printed = run(block, folder)
            assert prints(block, printed), f"line {block.line} prints\n{printed}"
    assert_the_rule_is_known_everywhere(folder)
    for name in ("docs/reference/reasons.md", "docs/reference/checks.md", "docs/concepts/fidelity.md"):
        assert "`text_has_url`" in (folder / name).read_text(encoding="utf-8")

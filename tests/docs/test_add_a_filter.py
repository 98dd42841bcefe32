"""The guide to adding a filter is true: its steps, applied to a copy of the repository, add the rule, and its commands
run there.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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

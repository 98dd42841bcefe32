"""The marks of tests in pyproject.toml are those that the Makefile leaves out."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_mark_but_everyday_is_left_out_of_the_fast_tests() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    marks = {mark.partition(":")[0] for mark in settings["markers"]}
    (left_out,) = re.findall(r"^LONG := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(left_out.split(" or ")) == marks - {"everyday"}

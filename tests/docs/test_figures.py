"""Figures and lists in the documents are those of the code: versions, targets, times, marks, defaults, rooms."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.docs.test_docs import DOCUMENTS, SOURCES, named, prose, settings_rows, table_under

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGETS = set(" ".join(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)).split())


def test_every_list_of_pythons_is_that_of_the_project() -> None:
    at_least, below = re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"])
    supported = [f"3.{minor}" for minor in range(int(at_least), int(below))]
    lists = {
        (path.name, *re.findall(r"3\.\d+", found))
        for path in (*DOCUMENTS, ROOT / "Makefile")
        for found in re.findall(r"Python ((?:3\.\d+(?:, | or )?){2,})", path.read_text(encoding="utf-8"))
    }
    assert {name for name, *_ in lists} >= {"README.md", "CONTRIBUTING.md", "first-run.md", "Makefile"}
    assert {tuple(versions) for _, *versions in lists} == {tuple(supported)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_target_of_make_is_there(document: Path) -> None:
    found = re.findall(r"(?:`|^)make ([a-z][a-z-]*)", document.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(found) <= TARGETS


def test_help_knows_every_target_that_people_give() -> None:
    brought = {"setup-dev", "prism", "google-cloud", "versitygw", "fake-gcs-server", "browser", "clean"}
    assert {line.removeprefix("make ") for line in _help()} == TARGETS - brought - {"help", "test-clusters-all"}


def test_how_long_the_tests_take_is_said_once() -> None:
    """CONTRIBUTING.md has the figures; help and README repeat them."""
    times = {row[0]: row[2] for row in table_under("CONTRIBUTING.md", "Set up") if row[0].startswith("make ")}
    assert times.keys() == {"make check", "make test", "make test-all", "make test-pythons"}
    assert {target: time in _help()[target] for target, time in times.items()} == dict.fromkeys(times, True)
    assert re.search(rf"^make test +# at most {times['make test']} ", README, re.MULTILINE)


def _help() -> dict[str, str]:
    """The lines of `make help`, by their command."""
    lines = re.findall(r'^\t@echo "(make.*)"$', MAKEFILE, re.MULTILINE)
    return {re.split(r" \[|  ", line)[0].strip(): line for line in lines}


def test_every_mark_that_contributing_names_is_one() -> None:
    marks = {mark.partition(":")[0] for mark in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    (paragraph,) = [line for line in prose(ROOT / "CONTRIBUTING.md").splitlines() if line.startswith("A fast test")]
    named_marks = re.findall(r"`([a-z]+)`", paragraph)
    assert named_marks
    assert set(named_marks) <= marks


def defaults() -> Iterator[tuple[str, str, Any]]:
    """Document, setting and value wherever a document calls a value the default."""
    setting = r"`\[?([a-z_.]+)[\].] ?([a-z_]+)"
    forms = (rf"{setting} = ([^`]+)`(?:,| \() ?the default", rf"{setting}`, ([\d._]+) by default")
    for path in DOCUMENTS:
        for form in forms:
            for section, name, value in re.findall(form, prose(path)):
                yield named(path), f"{section}.{name}", value


def test_every_value_that_is_called_the_default_is_one() -> None:
    found = list(defaults())
    assert len(found) >= 2
    rows = settings_rows()
    default = {name: row[1].partition("`, ")[0].strip("`") for name, row in rows.items()}  # before other choices
    assert [each for each in found if default[each[1]] != each[2]] == []


def test_the_table_of_the_tree_has_every_room() -> None:
    """Folders of packages down to the second level, and all others at the top."""
    inside = [path.parent.relative_to(ROOT) for path in ROOT.glob("*/*/__init__.py")]
    packages = {path.as_posix() for path in inside if path.parts[0] != "tests" and not (ROOT / path).is_symlink()}
    top = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."} - {"runs", "demo-web"}
    assert {row[0] for row in table_under("CONTRIBUTING.md", "Where things are")} == packages | top


def test_the_readme_is_short_and_its_picture_small() -> None:
    assert len(README.splitlines()) <= 120
    assert (ROOT / "docs/images/report.png").stat().st_size < 300_000


def test_the_figures_in_the_readme_s_picture_are_those_of_the_first_run() -> None:
    (picture,) = re.findall(r'<img src="docs/images/report.png" alt="([^"]+)"', README)
    first_run = (ROOT / "docs/start/first-run.md").read_text(encoding="utf-8")
    pairs, images = re.findall(r"([\d,]+) pairs of ([\d,]+) images", picture)[0]
    assert f"{pairs} pairs of {images} images" in first_run
    for reason, rows in re.findall(r"(\w+) \(([\d,]+)\)", picture):
        assert re.search(rf"│ {reason} +│ +{rows} │", first_run), reason


def test_setup_brings_the_extras_that_are_named() -> None:
    plan = ["make", "-n", "-C", str(ROOT), "setup", "EXTRAS=nsfw,open_clip"]
    said = subprocess.run(plan, capture_output=True, text=True, check=True).stdout
    assert "--inexact --extra nsfw --extra open_clip\n" in said


def test_every_extra_that_is_named_is_one_and_nobody_is_told_to_install_from_an_index() -> None:
    """No index of packages has altalign."""
    extras = set(PROJECT["project"]["optional-dependencies"])
    texts = {named(path): path.read_text(encoding="utf-8") for path in (*DOCUMENTS, *SOURCES)}
    of_make = {
        extra
        for text in texts.values()
        for extras in re.findall(r"EXTRAS=([\w,]+)", text)
        for extra in extras.split(",")
    }
    of_code = {extra for text in texts.values() for extra in re.findall(r'\bbring\("(\w+)"\)', text)}
    assert of_make | of_code <= extras
    assert of_make
    # who meets the error of a package that is missing has altalign installed, and pip takes that
    unasked = r"(?<!in a checkout, `)pip install ['\"]?altalign(?!-)"
    assert [name for name, text in texts.items() if re.search(unasked, text)] == []

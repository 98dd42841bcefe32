"""Machines, hours and cost in the guide to Dataflow: the table is what its own formulas give, of constants of the code
and figures of the measurements.
"""

import math
import re

import pytest

from altalign.pipelines.engine.options import DISK_GB, MACHINE_TYPE, MIN_RAM, NEEDED
from altalign.pipelines.run.units import IMAGES_PER_UNIT, ROWS_PER_UNIT
from altalign.pipelines.stages import group_survivors, tables
from tests.docs.blocks import ROOT

GUIDE = (ROOT / "docs" / "guides" / "dataflow.md").read_text(encoding="utf-8")
SIZES = {"10 M": 10_000_000, "1 B": 1_000_000_000, "10 B": 10_000_000_000}

FETCHED, KEPT, IMAGE_BYTES = 0.2, 0.1, 50_000
TEXT_S = {"10 M": 6.0, "1 B": 8.7, "10 B": 12.5}  # CPU seconds of a million candidates
WEB_S, SEARCH_S, WRITE_S = 0.0039, 0.00006, 0.0011
BUSY, AT_ONCE, STARTS_H = 0.6, 64, 1.0
VCPU_HOUR, STORED_GB_MONTH = 0.07, 0.02


def rows() -> dict[str, list[str]]:
    """Cells of the table by what stands before them, up to a colon or a comma."""
    lines = GUIDE.split("| | 10 M | 1 B | 10 B |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]
    return {re.split(r"[:,(]", row[0].replace("*", ""))[0].strip(): row[1:] for row in cells}


def number(cell: str) -> float:
    """The first number of a cell, with its unit of thousands."""
    found = re.search(r"([\d,.]+)\s*([MBk]?)", cell)
    assert found, cell
    return float(found[1].replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "B": 1e9}[found[2]]


def expected(size: str) -> dict[str, float]:
    n, vcpus = SIZES[size], number(rows()["vCPUs"][list(SIZES).index(size)])
    a_unit = IMAGES_PER_UNIT * {"10 M": 1, "1 B": 1, "10 B": 16}[size]
    partitions = min(4_096, max(16, 1 << (n // tables.ROWS_PER_PARTITION - 1).bit_length()))
    text, fetch, rest = TEXT_S[size] * n / 1e6, FETCHED * n * WEB_S, KEPT * n * (SEARCH_S + WRITE_S)
    fetching, others = FETCHED * n / vcpus / AT_ONCE / 3600, (text + rest) / BUSY / vcpus / 3600
    hours = fetching + others + STARTS_H
    return {
        "units in the text stages": n / ROWS_PER_UNIT,
        "partitions": partitions,
        "images fetched": FETCHED * n,
        "fetch units": partitions * math.ceil(FETCHED * n / partitions / a_unit),
        "text": text / 3600,
        "fetch": fetch / 3600,
        "search and write": rest / 3600,
        "hours of fetching": fetching,
        "hours of the rest": others,
        "hours of starts": STARTS_H,
        "hours": hours,
        "stored": 2 * KEPT * n * IMAGE_BYTES / 1e12,
        "storage": 2 * KEPT * n * IMAGE_BYTES / 1e9 * STORED_GB_MONTH,
        "machines": hours * vcpus * VCPU_HOUR,
    }


@pytest.mark.parametrize("size", SIZES)
def test_the_table_is_what_its_formulas_give(size: str) -> None:
    table, column = rows(), list(SIZES).index(size)
    for name, value in expected(size).items():
        cell = table[name][column]
        assert number(cell.lstrip("$")) == pytest.approx(value, rel=0.06, abs=0.021), f"{name}: {cell}"
    vcpus, machines = (float(text.replace(",", "")) for text in re.findall(r"[\d,]+", table["vCPUs"][column]))
    assert vcpus == 4 * machines


def test_the_figures_it_begins_with_are_those_it_names() -> None:
    assert tables.ROWS_PER_PARTITION == group_survivors.ROWS_PER_PARTITION
    for words in (
        "| 6.0 at 100 M |",
        "8.7 at 1 B and 12.5 at 10 B",
        "| 0.0039 |",
        "| 0.00006 |",
        "| 0.0011 |",
        "60 % of the time",
        "**$0.07**",
        "$0.02",
    ):
        assert words in GUIDE, words


def test_measured_figures_are_of_the_benchmarks() -> None:
    speed = (ROOT / "docs" / "concepts" / "speed.md").read_text(encoding="utf-8")
    text = re.search(r"\| `altalign 100 M, K = 20 M` \| ([\d.]+) \|", speed)
    web = re.search(r"\| `altalign` \| 1,500 \| [^|]* \| ([\d.]+) ", speed)
    pages = re.search(r"\| `altalign` \| ([\d,]+) \([\d, to]+\) \| 0\.\d+ GB \|", speed)
    searched = re.search(r"and (\d+) µs for a million", speed)
    assert text
    assert web
    assert pages
    assert searched
    # the guide counts with the slower of the processors that were measured
    assert TEXT_S["10 M"] / 3 < float(text[1]) / 100 < TEXT_S["10 M"] * 1.2
    assert float(web[1]) / 1_500 == pytest.approx(WEB_S, rel=0.2)
    assert 1 / float(pages[1].replace(",", "")) == pytest.approx(0.0002, rel=0.2)
    assert float(searched[1]) * 1e-6 == pytest.approx(SEARCH_S, rel=0.2)


def test_defaults_of_jobs_are_those_of_the_code() -> None:
    for flag in (
        f"--machine_type={MACHINE_TYPE}",
        f"--disk_size_gb={DISK_GB}",
        f"--resource_hints={MIN_RAM}",
    ):
        assert f"`{flag}`" in GUIDE
    for name in NEEDED:
        assert f"--{name}" in GUIDE

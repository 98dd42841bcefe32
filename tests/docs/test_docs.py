"""The documents hold: commands run and print what stands below them, links lead somewhere, tables equal the code.

A fenced `sh` block is run in a temporary copy of what it needs, one copy a document, in order; with a note behind `sh`
(`not run here`, or where it is run) it is not. `altalign …` runs in this process. `make …` is expanded by `make -n`,
and what it would run of altalign runs. A command that ends in `# exits N` must. Every other block goes to a shell, a
`python` block to this interpreter. A `text` block right below a block is what its last command prints (errors, where it
exits with another code than 0); `…` in it stands for anything, on a line of its own for any lines.
"""

import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
from fnmatch import fnmatch
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from altalign import cli
from altalign.cli import VERBS
from altalign.data.audit_tables import BALANCED
from altalign.data.reasons import REASONS, WORDS
from altalign.data.stages import OUTPUTS
from altalign.filters.reservations import NOTATIONS
from altalign.rules.rule import Rule
from tests import made_once
from tests.docs.blocks import FENCE, ROOT, Block, blocks, prints

SOURCES = [path for path in ROOT.rglob("*.py") if not any(part.startswith(".venv") for part in path.parts)]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_blocks(path: Path) -> list[Block]:
    """The blocks that are run here."""
    return [block for block in blocks(path) if block.kind in ("sh", "python") and not block.note]


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


# Commands ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def workshop(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the checkout, of links."""
    folder = made_once.linked(checkout, tmp_path / "checkout")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")
    return folder


def run_altalign(argv: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(argv)
        except SystemExit as end:  # argparse: --help, and usage errors
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def run_make(line: str) -> tuple[int, str, str]:
    """What `make -n` says would run: it must be a target, and its altalign commands must work."""
    outer = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "FLAGS")
    }
    make = ["make", "-n", "-C", str(ROOT), "--no-print-directory", *shlex.split(line)[1:]]
    plan = subprocess.run(make, capture_output=True, text=True, check=False, env=outer)
    result = plan.returncode, "", plan.stderr
    for command in plan.stdout.splitlines():
        if command.startswith(".venv/bin/altalign ") and result[0] == 0:
            result = run_altalign(shlex.split(command)[1:])
    return result


def run_block(block: Block) -> tuple[int, str, str]:
    if block.kind == "python":
        ran = subprocess.run(
            [sys.executable, "-c", block.text],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        return ran.returncode, ran.stdout, ran.stderr
    if not block.text.startswith(("altalign ", "make ")):
        ran = subprocess.run(["bash", "-euc", block.text], capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout, ran.stderr
    result = 0, "", ""
    for line in block.text.replace("\\\n", " ").splitlines():
        command, _, expected = line.partition("# exits ")
        argv = shlex.split(command, comments=True)
        if not argv:
            continue
        result = run_make(command.partition("#")[0]) if argv[0] == "make" else run_altalign(argv[1:])
        assert result[0] == int(expected or 0), f"{line}\n{result[1]}{result[2]}"
    return result


@pytest.mark.guides
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            path, marks=[pytest.mark.everyday] if named(path) in ("README.md", "docs/start/first-run.md") else []
        )
        for path in DOCUMENTS
        if run_blocks(path)
    ],
    ids=named,
)
def test_every_command_runs_and_prints_what_the_document_says(document: Path, workshop: Path):
    for block in run_blocks(document):
        code, out, err = run_block(block)
        where = f"{named(document)}:{block.line}"
        if block.kind == "python" or not block.text.startswith(("altalign ", "make ")):
            assert code == 0, f"{where}\n{err}"
        assert prints(block, err if code else out), f"{where} prints\n{err if code else out}"


# Links ---------------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_relative_link_leads_somewhere(document: Path):
    broken = []
    for target in LINK.findall(prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_every_document_can_be_reached_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        targets = [
            (path.parent / target.partition("#")[0]).resolve()
            for target in LINK.findall(prose(path))
            if not re.match(r"[a-z]+:", target)
        ]
        waiting += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert sorted(map(named, set(DOCUMENTS) - seen)) == []


ROOMS = "altalign|filters|dedup|pipelines|train|eval|configs|examples|experiments|benchmarks|tests|docs"
GONE = {
    "docs/adr/0001-import-names.md": {"train.py", "filters.py"},  # somebody else's
    "docs/adr/0016-dropped-rows.md": {"parquet_pages.py", "hex_frames.py"},  # in the history
    "docs/guides/rules-of-your-own.md": {"MODULE.py"},  # the reader's
    "docs/reference/files.md": {"MODULE.py"},
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_path_in_backticks_of_ours_exists(document: Path):
    """`filters/text.py`, `cases/*.toml` and their like, with the function or constant that is named behind the path.

    Names of what a run leaves are left to test_every_file_of_a_run_is_described.
    """
    of_a_run = (*chain.from_iterable(OUTPUTS.values()), BALANCED.path, "audit/*.", "eval/step-", "eval/features/")
    spans = rf"`((?:{ROOMS})/[\w./*-]*|[\w/]+\.py)(?:: |`: `)?([\w.]+)?`"
    missing = []
    for path, name in re.findall(spans, prose(document)):
        is_of_a_run = path.startswith(of_a_run) and not path.endswith(".py")
        if is_of_a_run or path in GONE.get(named(document), ()):
            continue
        found = list(ROOT.glob(path)) or [source for source in SOURCES if source.match(path)]
        is_there = all(
            re.search(rf"\b{part}\b", found[0].read_text("utf-8")) for part in name.split(".") if part and found
        )
        if not found or not is_there:
            missing.append(f"{path} {name}".strip())
    assert missing == []


# Tables --------------------------------------------------------------------------------------------------------------


def table_under(document: str, heading: str) -> list[list[str]]:
    """Rows of the first table under a heading, without its head; backticks removed."""
    text = (ROOT / document).read_text(encoding="utf-8")
    section = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, f"{document} has no heading {heading!r}"
    lines: list[str] = []
    for line in section[1].splitlines():
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            break
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines[2:]]


def make_reference() -> Any:
    """docs/make_reference.py as a module."""
    spec = spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = make_reference()


@pytest.mark.parametrize("document", REFERENCE.DOCUMENTS)
def test_what_is_generated_is_what_the_code_says(document: str):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert text == REFERENCE.written(text, REFERENCE.DOCUMENTS[document]()), "`make docs` writes it anew"


@pytest.mark.parametrize("document", REFERENCE.DOCUMENTS)
def test_whatever_is_generated_is_described(document: str):
    tables = REFERENCE.DOCUMENTS[document]()
    assert [f"{name}: {row[0]}" for name, (_, *rows) in tables.items() for row in rows if not row[-1]] == []


def test_a_part_without_a_place_and_a_place_without_a_part_are_refused():
    table = [["Head"], ["cell"]]
    text = "# A\n\n<!-- generated: a -->\nold\n<!-- end -->\n\nown words\n"
    assert (
        REFERENCE.written(text, {"a": table})
        == "# A\n\n<!-- generated: a -->\n\n| Head |\n|---|\n| cell |\n\n<!-- end -->\n\nown words\n"
    )
    for parts in ({}, {"b": table}, {"a": table, "b": table}):
        with pytest.raises(ValueError, match="generated parts"):
            REFERENCE.written(text, parts)


def settings_rows() -> dict[str, list[str]]:
    """Rows of the settings reference by dotted name."""
    found = {}
    for heading, (_, *rows) in REFERENCE.DOCUMENTS["docs/reference/settings.md"]().items():
        found |= {f"{heading.strip('[]')}.{row[0].strip('`')}": row for row in rows}
    return found


def function_named(place: str) -> Any:
    """`filters/text.py: too_short` -> the function."""
    path, _, name = place.partition(": ")
    function: Any = import_module(path.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        function = getattr(function, part)
    return function


def rules() -> list[list[str]]:
    """Reason and function of every row that says where a reason is given, and the first setting that it names."""
    rows = [row for stage in REASONS for row in table_under("docs/reference/reasons.md", stage.value)]
    return [[reason, place, next(iter(WORDS[reason].settings), "")] for reason, place, _ in rows]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule[0])
def test_the_function_that_a_table_names_gives_the_reason_and_its_setting_exists(rule: list[str]):
    reason, place, setting = rule
    function = function_named(place)
    if isinstance(function, Rule):
        assert function.name == reason
    elif place == "filters/reservations/__init__.py: reason":
        assert reason in map(function, NOTATIONS)
    elif reason not in ("record_broken", "url_too_long", "url_invalid"):  # those of pages are given by their rules
        assert reason.upper() in inspect.getsource(function), f"{place} does not give {reason}"
    assert not setting or setting in settings_rows()


def test_fidelity_names_every_rule():
    """By the reason, the function or the setting, in backticks."""
    said = set(re.findall(r"`([\w.*]+)`", (ROOT / "docs/concepts/fidelity.md").read_text(encoding="utf-8")))
    said |= {name.rpartition(".")[2] for name in said}
    unsaid = [
        reason
        for reason, place, setting in rules()
        if not ({reason, place.rpartition(": ")[2], setting.rpartition(".")[2]} - {""}) & said
        and not any(fnmatch(reason, name) for name in said if "*" in name)
    ]
    assert unsaid == []


@pytest.mark.everyday
@pytest.mark.guides
def test_every_file_of_a_run_is_described(checkout: Path):
    patterns = [row[0] for row in table_under("docs/reference/files.md", "The folder")]
    found = [
        path.relative_to(run).as_posix()
        for run in (checkout / "runs").iterdir()
        for path in run.glob("**/*")
        if path.is_file()
    ]
    assert [
        name
        for name in found
        if not any(fnmatch(name, p.replace("NNNNN", "*").replace("STAGE", "*")) for p in patterns)
    ] == []
    # rules of one's own, clusters, trials, and images from the web
    on_demand = {
        "MODULE.py",
        "clusters/NNNNN.parquet",
        "clusters/clusters.json",
        "log/trouble.json",
        "removed.parquet",
        ".change/*",
        ".adding/*",
        "shards/gNNNN-NNNNN.tar",
        "audit/balanced.parquet",
        "work/trial/*",
        "work/discarded/*",
        "work/fetched/*",
        *(pattern for pattern in patterns if pattern.startswith("trial/")),
        *(pattern for pattern in patterns if pattern.startswith("scores/")),
        *(pattern for pattern in patterns if pattern.startswith("log/fetch/")),
    }
    assert [
        p
        for p in patterns
        if p not in on_demand
        and not any(fnmatch(name, p.replace("NNNNN", "*").replace("STAGE", "*")) for name in found)
    ] == []


def test_the_commands_reference_names_every_verb():
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^## altalign (\w+)$", text, re.MULTILINE) == list(VERBS)


def test_nothing_says_where_it_was_written():
    """No document names a machine's folders."""
    assert [
        named(path)
        for path in DOCUMENTS
        if re.search(r"(?<![\w.}>])/(?:work|home|tmp)/", path.read_text(encoding="utf-8"))
    ] == []

"""The documents hold: commands run and print what stands below them, links lead somewhere, tables equal the code.

A fenced `sh` block is run in a temporary copy of what it needs, one copy a document, in order; with `not run here` behind `sh` it is not.
`altalign …` runs in this process. `make …` is expanded by `make -n`, and what it would run of altalign runs. A command that ends in
`# exits N` must. Every other block goes to a shell, a `python` block to this interpreter. A `text` block right below a block is what its last
command prints (errors, where it exits with another code than 0); `…` in it stands for anything, on a line of its own for any lines.
"""

import contextlib
import inspect
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import annotated_types
import pyarrow as pa
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from altalign import cli, errors, schema
from altalign.cli import VERBS
from altalign.curation import LARGEST, CurateConfig
from altalign.reasons import REASONS, DropReason
from altalign.settings import stage_of
from demo import web
from pipelines import image_values, joint

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
NOT_YET = "not yet"
FENCE = re.compile(r"^```(?P<kind>\w*)(?P<note>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    kind: str
    text: str
    output: str | None
    line: int


def blocks(path: Path) -> list[Block]:
    """The fenced blocks that are run, each with what it should print."""
    text = path.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    found = []
    for fence, after in pairwise([*fences, None]):
        assert fence is not None
        is_answered = after is not None and after["kind"] == "text" and not text[fence.end() : after.start()].strip()
        if fence["kind"] in ("sh", "python") and "not run here" not in fence["note"]:
            found.append(Block(fence["kind"], fence["text"], after["text"] if after and is_answered else None, text.count("\n", 0, fence.start()) + 1))
    return found


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


# Commands ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user's checkout is after both sample runs."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    web.write(folder / "demo-web")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for config in ("configs/handbook.toml", "configs/demo.toml"):
            assert cli.main(["curate", config]) == 0
    return folder


@pytest.fixture
def workshop(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, of links: whatever altalign writes, it writes anew."""
    folder = tmp_path / "checkout"
    shutil.copytree(finished, folder, copy_function=os.link)
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
    outer = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")}
    make = ["make", "-n", "-C", str(ROOT), "--no-print-directory", *shlex.split(line)[1:]]
    plan = subprocess.run(make, capture_output=True, text=True, check=False, env=outer)
    result = plan.returncode, "", plan.stderr
    for command in plan.stdout.splitlines():
        if command.startswith(".venv/bin/altalign ") and result[0] == 0:
            result = run_altalign(shlex.split(command)[1:])
    return result


def run_block(block: Block) -> tuple[int, str, str]:
    if block.kind == "python":
        ran = subprocess.run([sys.executable, "-c", block.text], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)})
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


def pattern(text: str) -> str:
    """A regular expression of expected output: `…` is anything, alone on its line any lines."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return "".join(r"(?:[^\n]*\n)*?" if line == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n" for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("document", [path for path in DOCUMENTS if blocks(path)], ids=named)
def test_every_command_runs_and_prints_what_the_document_says(document: Path, workshop: Path):
    for block in blocks(document):
        code, out, err = run_block(block)
        where = f"{named(document)}:{block.line}"
        if block.kind == "python" or not block.text.startswith(("altalign ", "make ")):
            assert code == 0, f"{where}\n{err}"
        if block.output is not None:
            printed = "".join(line.rstrip() + "\n" for line in (err if code else out).splitlines())
            assert re.fullmatch(pattern(block.output), printed.rstrip() + "\n"), f"{where} prints\n{printed}"


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
        targets = [(path.parent / target.partition("#")[0]).resolve() for target in LINK.findall(prose(path)) if not re.match(r"[a-z]+:", target)]
        waiting += [target for target in targets if target.suffix == ".md" and target.exists()]
    assert sorted(map(named, set(DOCUMENTS) - seen)) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_path_in_backticks_of_ours_exists(document: Path):
    """`filters/text.py` and its like; names of what a run leaves are left to test_every_file_of_a_run_is_described."""
    ours = r"`((?:altalign|filters|dedup|pipelines|audit|demo|configs|examples|tests|docs)/[\w./-]*)`"
    found = [name for name in re.findall(ours, prose(document)) if not name.endswith((".parquet", ".json"))]
    missing = [name for name in found if not (ROOT / name).exists()]
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


def shown_type(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        *most, last = [f'"{choice}"' for choice in get_args(annotation)]
        return f"{', '.join(most)} or {last}"
    if get_origin(annotation) is list:
        return f"list of {shown_type(get_args(annotation)[0])}"
    if get_origin(annotation) is Annotated:
        return shown_type(get_args(annotation)[0])
    if isinstance(annotation, type):
        return "table" if issubclass(annotation, BaseModel) else annotation.__name__
    return " or ".join(map(shown_type, get_args(annotation)))  # a union


def shown_value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case int() if value >= 10_000:
            return f"{value:_}"
    return str(value)


def shown_range(field: FieldInfo) -> str:
    parts = []
    for mark in field.metadata:
        match mark:
            case annotated_types.Ge():
                parts.append(f">= {mark.ge}")
            case annotated_types.Gt():
                parts.append(f"> {mark.gt}")
            case annotated_types.Le() if mark.le != LARGEST:
                parts.append(f"<= {mark.le}")
            case annotated_types.MinLen():
                parts.append("not empty")
    return ", ".join(parts)


def settings_tables() -> Iterator[tuple[str, list[list[str]]]]:
    """Heading and rows (name, type, default, range, read by) of every section of the settings."""
    waiting: list[tuple[str, type[BaseModel]]] = [("", CurateConfig)]
    while waiting:
        section, cls = waiting.pop(0)
        rows = []
        for name, field in cls.model_fields.items():
            dotted = f"{section}.{name}".strip(".")
            inner = next((a for a in (field.annotation, *get_args(field.annotation)) if isinstance(a, type) and issubclass(a, BaseModel)), None)
            if inner is not None:
                waiting.append((dotted, inner))
                continue
            default = "required" if field.is_required() else shown_value(field.get_default(call_default_factory=True))
            rows.append([name, shown_type(field.annotation), default, shown_range(field), stage_of(CurateConfig, dotted) or ""])
        if rows:
            yield f"[[{section}]]" if section == "input" else f"[{section}]", rows


@pytest.mark.parametrize(("heading", "rows"), list(settings_tables()), ids=[heading for heading, _ in settings_tables()])
def test_the_settings_reference_equals_the_settings_classes(heading: str, rows: list[list[str]]):
    assert [row[:5] for row in table_under("docs/reference/settings.md", heading)] == rows


def test_every_setting_is_described():
    lines = [row for heading, _ in settings_tables() for row in table_under("docs/reference/settings.md", heading)]
    assert [row[0] for row in lines if not row[5]] == []


@pytest.mark.parametrize("stage", list(REASONS), ids=str)
def test_the_reasons_reference_equals_the_reasons(stage: Any):
    assert [row[0] for row in table_under("docs/reference/reasons.md", stage.value)] == [reason.value for reason in REASONS[stage]]


def function_named(place: str) -> Any:
    """`filters/text.py: too_short` -> the function."""
    path, _, name = place.partition(": ")
    function: Any = import_module(path.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        function = getattr(function, part)
    return function


def setting_named(dotted: str) -> bool:
    return any(f"{heading.strip('[]')}.{row[0]}" == dotted for heading, rows in settings_tables() for row in rows)


def rules() -> list[list[str]]:
    """Reason, function and setting of every row that says where a reason is given."""
    reference = [row for stage in REASONS for row in table_under("docs/reference/reasons.md", stage.value)]
    return [row[:3] for row in [*reference, *table_under("README.md", "From a row to the line that dropped it")]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule[0])
def test_the_function_that_a_table_names_gives_the_reason_and_its_setting_exists(rule: list[str]):
    reason, place, setting = rule
    if place != NOT_YET:
        function = function_named(place)
        says = reason == DropReason.RECORD_BROKEN or DropReason(reason).name in inspect.getsource(function)
        assert says, f"{place} does not give {reason}"
    assert not setting or setting_named(setting)


def sources() -> str:
    """The code that makes and reads runs."""
    files = (path for folder in ("filters", "dedup", "pipelines", "audit") for path in (ROOT / folder).glob("**/*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_what_is_said_to_be_missing_is_missing():
    code = sources()
    reasons = [row[0] for stage in REASONS for row in table_under("docs/reference/reasons.md", stage.value) if row[1] == NOT_YET]
    unused = [row[0] for heading, _ in settings_tables() for row in table_under("docs/reference/settings.md", heading) if "Not used yet" in row[5]]
    assert [name for name in reasons if f"DropReason.{DropReason(name).name}" in code] == []
    assert [name for name in unused if re.search(rf"\.{name}\b", code)] == []


def test_the_readme_names_every_rule_of_this_version():
    said = {row[0] for row in table_under("README.md", "From a row to the line that dropped it")}
    reference = [row for stage in REASONS for row in table_under("docs/reference/reasons.md", stage.value)]
    assert said == {row[0] for row in reference if row[1] != NOT_YET}


SCHEMAS = {
    "dropped/STAGE/*.parquet": schema.DROPPED,
    "shards/NNNNN.parquet": schema.SAMPLE,
    "counts.parquet": schema.COUNTS,
    "audit/text_joint.parquet": joint.JOINT,
    "audit/image_joint.parquet": image_values.JOINT,
    "audit/image_values.parquet": image_values.VALUES,
}


@pytest.mark.parametrize(("heading", "columns"), SCHEMAS.items(), ids=SCHEMAS)
def test_the_files_reference_equals_the_schemas(heading: str, columns: pa.Schema):
    assert [row[:2] for row in table_under("docs/reference/files.md", heading)] == [
        [field.name, str(field.type).replace("item: ", "").replace("element: ", "")] for field in columns
    ]


@pytest.mark.slow
def test_every_file_of_a_run_is_described(finished: Path):
    patterns = [row[0] for row in table_under("docs/reference/files.md", "The folder")]
    found = [path.relative_to(run).as_posix() for run in (finished / "runs").iterdir() for path in run.glob("**/*") if path.is_file()]
    assert [name for name in found if not any(fnmatch(name, p.replace("NNNNN", "*").replace("STAGE", "*")) for p in patterns)] == []
    on_demand = {"log/trouble.json"}
    assert [p for p in patterns if p not in on_demand and not any(fnmatch(name, p.replace("NNNNN", "*").replace("STAGE", "*")) for name in found)] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_commands_reference_names_every_option_of_a_verb(verb: str):
    _, usage, _ = run_altalign([verb, "--help"])
    options = [row[0].split()[0] for row in table_under("docs/reference/commands.md", f"altalign {verb}") if row[0].startswith("-")]
    assert sorted(options) == sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage)) - {"--help"})


def test_the_commands_reference_names_every_verb():
    text = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^## altalign (\w+)$", text, re.MULTILINE) == list(VERBS)


def test_the_errors_reference_names_every_error_and_its_exit_code():
    known = {name: str(kind.exit_code) for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.AltalignError)}
    assert {row[0]: row[1] for row in table_under("docs/reference/errors.md", "Kinds")} == known


def test_nothing_says_where_it_was_written():
    """No document names a machine's folders."""
    assert [named(path) for path in DOCUMENTS if re.search(r"/(?:work|home|tmp)/", path.read_text(encoding="utf-8"))] == []

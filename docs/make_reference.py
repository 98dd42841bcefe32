"""Writes the parts of the documents that the code knows: `make docs`.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. What it says comes from where the fact is: types,
defaults and ranges from the settings classes, and descriptions from the docstring below a setting or reason, of an
exception, or the comment behind a column. `tests/docs/test_docs.py` fails while a document is not what this writes.
"""

import inspect
import logging
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from altalign import errors, python
from altalign.audit.compare import Comparison
from altalign.audit.explain import Explanation
from altalign.audit.notebook import Gallery
from altalign.audit.opened import Run
from altalign.data import audit_tables, schema
from altalign.data.audit_tables import AuditTable
from altalign.data.reasons import OPT_OUTS, PAPERS, REASONS, RULES, WORDS, DropReason, Stage
from altalign.eval.settings import EvalSets
from altalign.settings.curate import CurateConfig
from altalign.settings.score import ScoreConfig
from altalign.train.settings.sweep import SweepConfig
from docs.option_tables import option_tables
from docs.read_source import comments, sentence
from docs.settings_tables import Table, settings_tables, tasks_table
from docs.stage_tables import stage_tables

ROOT = Path(__file__).parents[1]
PART = re.compile(r"(?P<begin><!-- generated: (?P<name>.+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)

# The functions that give the reasons of no rule.
OF_PAGES = "pipelines/read/pages/image_elements.py: verdicts"
GIVEN_BY = {
    DropReason.RECORD_BROKEN: "pipelines/read/stretches.py: Gatherer.broken",
    DropReason.PAIR_REPEATED: "pipelines/stages/group_survivors.py: group",
    DropReason.NOT_IN_ARCHIVE: "pipelines/stages/fetch.py: _found_in_files",
    DropReason.HTTP_STATUS: "pipelines/web/fetching.py: Fetching._try",
    DropReason.HTTP_TIMEOUT: "pipelines/web/schedule.py: Schedule.ask",
    DropReason.HTTP_NOT_ASKED: "pipelines/web/calls.py: Fetch.reason",
    DropReason.HTTP_UNREACHABLE: "pipelines/web/transport.py: _failed",
    DropReason.HTTP_BROKEN: "pipelines/web/transport.py: _failed",
    DropReason.HTTP_TOO_LARGE: "pipelines/web/transport.py: Transport._body",
    **dict.fromkeys(OPT_OUTS, "filters/reservations/__init__.py: reason"),
    DropReason.OPT_OUT_ROBOTS_TXT: "pipelines/web/fetching.py: Fetching._check",
    DropReason.HTTP_REFUSED: "pipelines/web/fetching.py: Fetching._admitted",
    DropReason.URL_BLOCKED: "pipelines/stages/fetch.py: _excluded",
    DropReason.NEAR_DUPLICATE_OF_TEST_IMAGE: "pipelines/stages/decontaminate.py: _dropped",
    DropReason.NEAR_DUPLICATE_IN_POOL: "pipelines/stages/decontaminate.py: _dropped",
    DropReason.REMOVED: "pipelines/change/remove.py: remove",
    DropReason.OUT_OF_BALANCE: "pipelines/derive/balance.py: verdict",
    DropReason.NOT_LISTED: "pipelines/derive/select.py: choose_listed",
}

# Schemas by the heading of their files, and the columns that another heading describes.
SCHEMAS = {
    "shards/NNNNN.parquet": ("SIDE_CAR", ()),
    "dropped/STAGE/*.parquet": (
        "DROPPED",
        ("page_url", "source", "source_key", "extra", "words", "found_sha256"),
    ),
    "clusters/NNNNN.parquet": ("CLUSTER", ()),
    "removed.parquet": ("REMOVED", ()),
    "counts.parquet": ("COUNTS", ()),
}
# Tables of the audit by the names of their columns' lists; the others have columns of these.
COLUMNS_OF_AUDIT = {
    "MEASURED": ("TEXT_MEASURES", "IMAGE_MEASURES"),
    **{
        name: (name,)
        for name, table in vars(audit_tables).items()
        if isinstance(table, AuditTable) and name not in ("TEXT_MEASURES", "IMAGE_MEASURES", "SAMPLES", "FAILED_ROWS")
    },
}

# Numbers that the arithmetic of docs/concepts/scale.md rests on.
CONSTANTS = (
    (
        "altalign.pipelines.run.units",
        "ROWS_PER_UNIT",
        "candidates of a unit, at most (a larger row group of a table is one unit)",
    ),
    ("altalign.pipelines.run.units", "IMAGES_PER_UNIT", "images of a fetch unit, at most; of larger pools more"),
    ("altalign.pipelines.run.pool", "ROWS_OF_LARGE", "candidates, above which fetch units grow with the pool"),
    ("altalign.pipelines.run.pool", "ENLARGED_AT_MOST", "times as many images then, at most"),
    ("altalign.data.unit_marks", "BUNDLED", "marks of a bundle"),
    ("altalign.pipelines.engine.spilled_groups", "GROUPS_AT_MOST", "groups of partitions, at most"),
    ("altalign.pipelines.engine.spilled_groups", "HELD_BYTES", "bytes of slices that a unit holds before it writes"),
    ("altalign.pipelines.engine.spilled_groups", "MERGED_BYTES", "bytes of memory of a thread that merges, at most"),
    (
        "altalign.pipelines.stages.tables",
        "ROWS_PER_PARTITION",
        "candidates of the pool for each partition of the tables",
    ),
    (
        "altalign.pipelines.stages.group_survivors",
        "ROWS_PER_PARTITION",
        "candidates of the pool for each partition of survivors",
    ),
    ("altalign.pipelines.stages.extract", "SAMPLE_PER_REASON", "dropped rows of each reason that `extract` keeps"),
    (
        "altalign.pipelines.read.test_sets",
        "FILES_PER_PART",
        "images of a test set that are read as one unit, where they are files",
    ),
    (
        "altalign.pipelines.near.index",
        "TRAINING_IMAGES",
        "images of the run that the map is learned from, with 28 copies each",
    ),
    ("altalign.dedup.clusters", "SAMPLES_PER_CLUSTER", "images of the run for each cluster"),
)


def main() -> int:
    """Write every document anew that differs."""
    logging.getLogger().setLevel(logging.CRITICAL)  # what libraries remark when they are imported
    for name, parts in DOCUMENTS.items():
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = written(before, parts())
        if after != before:
            path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{name}: written\n")
    return 0


def written(text: str, parts: Mapping[str, Table]) -> str:
    """The document with its parts as they are now.

    Raises:
        ValueError: a part has no place in the document, or a place no part.
    """
    places = [place["name"] for place in PART.finditer(text)]
    if sorted(places) != sorted(parts):
        raise ValueError(
            f"generated parts {sorted(parts)}, places for {sorted(places)}; a place is <!-- generated: NAME -->, then "
            "<!-- end -->"
        )
    return PART.sub(lambda place: f"{place['begin']}\n{markdown(parts[place['name']])}\n{place['end']}", text)


def markdown(table: Table) -> str:
    """A table as Markdown has it."""
    head, *rows = table
    lines = ["".join(f"| {cell} " if cell else "| " for cell in cells) for cells in (head, *rows)]
    return "\n".join(f"{line}|" for line in [lines[0], "|---" * len(head), *lines[1:]]) + "\n"


# Reasons -------------------------------------------------------------------------------------------------------------


def reasons_table(stage: Stage) -> Table:
    """Reasons of a stage: name, the function that gives it, description."""
    rows = []
    for reason in REASONS[stage]:
        place = OF_PAGES if stage is Stage.EXTRACT and reason not in GIVEN_BY else place_of(reason)
        rows.append([f"`{reason}`", f"`{place}`", WORDS[reason].meaning])
    return [["Reason", "Function", "Meaning"], *rows]


def place_of(reason: str) -> str:
    """The function that gives a reason: "path: function"."""
    rule = next((rule for rules in RULES.values() for rule in rules if rule.name == reason), None)
    return (
        f"{path_of(sys.modules[rule.function.__module__])}: {reason}" if rule else GIVEN_BY[DropReason[reason.upper()]]
    )


def fidelity_tables() -> dict[str, Table]:
    """The rules of the paper, in its words; and the reasons that are ours, with why."""
    of_paper = [
        [f"`{reason}`", f'"{paper.quote}" ({paper.where})', f"`{WORDS[reason].threshold}`"]
        for reason, paper in PAPERS.items()
    ]
    ours = [[f"`{reason}`", words.why] for reason, words in WORDS.items() if words.why]
    return {
        "of the paper": [["Rule", "The paper's words", "Setting"], *of_paper],
        "ours": [["Rule", "Why"], *ours],
    }


# Columns, errors, constants ------------------------------------------------------------------------------------------


def schema_tables() -> dict[str, Table]:
    """The columns of a run's Parquet files: a table each, and one of all files of the audit."""
    found = {}
    for heading, (name, elsewhere) in SCHEMAS.items():
        lists = ("SAMPLE", "_PLACED") if name == "SIDE_CAR" else (name,)
        meanings = {column: text for each in lists for column, text in comments(schema, each).items()}
        names = [column for column in getattr(schema, name).names if column not in elsewhere]
        found[heading] = [["Column", "Meaning"], *([f"`{column}`", meanings.get(column, "")] for column in names)]
    rows = []
    for name, files in COLUMNS_OF_AUDIT.items():
        paths = ", ".join(f"`{getattr(audit_tables, file).path.removeprefix('audit/')}`" for file in files)
        rows.append(
            [paths, "<br>".join(f"`{column}`: {text}" for column, text in comments(audit_tables, name).items())]
        )
    return {**found, "audit": [["File", "Columns"], *rows]}


def errors_table() -> Table:
    """How a command can end: name of the error, in the order of the module, exit code, first line of its docstring."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AltalignError)
    ]
    rows = [[f"`{kind.__name__}`", str(kind.exit_code), (kind.__doc__ or "").partition("\n")[0]] for kind in kinds]
    return [
        ["Error", "Exit code", "When"],
        ["", "0", "Done."],
        *rows,
        ["", str(128 + signal.SIGINT), "Interrupted; of another signal 128 and its number."],
    ]


def checks_table() -> Table:
    """Checks of a finished run: name, what is looked at, and what to do where it fails.

    Those of rules share a row.
    """
    rows: dict[tuple[str, str], list[str]] = {}
    for name, (things, repair) in import_module("altalign.audit.checks").ABOUT.items():
        what = things.replace("(s)", "s")
        flags = re.findall(r"--re[a-z]+(?: write)?", repair)
        rows.setdefault((what, f"`{flags[0]}`" if flags else repair), []).append(f"`{name}`")
    return [
        ["Check", "What is looked at", "Where it fails"],
        *([", ".join(names), what, repair] for (what, repair), names in rows.items()),
    ]


def not_asked_table() -> Table:
    """Rules that a finished run cannot be asked about, and why."""
    rules = import_module("altalign.audit.checks").NOT_ASKED
    return [["Rule", "Why"], *([f"`{rule}`" if rule.isidentifier() else rule, why] for rule, why in rules.items())]


def constants_table() -> Table:
    """Numbers of the code: name, value, meaning."""
    rows = [(import_module(module), name, meaning) for module, name, meaning in CONSTANTS]
    return [
        ["Constant", "Value", "What"],
        *([f"`{path_of(home)}`: `{name}`", f"{getattr(home, name):,}", meaning] for home, name, meaning in rows),
    ]


def calls_table(owner: Any, names: Iterable[str], prefix: str = "") -> Table:
    """Functions of a module, or members of a class: how each is called, and its docstring without what it raises."""
    rows = []
    for name in names:
        member = inspect.getattr_static(owner, name)
        call = f"{prefix}{name}{parameters(member) if inspect.isfunction(member) else ''}"
        rows.append([f"`{call}`", " ".join(described(inspect.getdoc(member) or ""))])
    return [["Call", "What it does"], *rows]


def parameters(function: Callable[..., Any]) -> str:
    """The parameters of a function in parentheses, with their defaults."""
    shown = inspect.signature(function).parameters.values()
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in shown if each.name != "self"]
    return str(inspect.Signature(bare))


def described(docstring: str) -> Iterator[str]:
    """The sentences of a docstring, then its arguments, then what it gives; what it raises is left to the errors."""
    text, *parts = re.split(r"\n\n(?=(?:Args|Returns|Raises):\n)", docstring)
    yield " ".join(text.split())
    for part in parts:
        title, _, rest = part.partition("\n")
        if title == "Args:":
            arguments = [" ".join(each.split()) for each in re.split(r"\n {4}(?=\w)", f"\n{rest}") if each.strip()]
            yield " ".join(re.sub(r"^(\w+): ", r"`\1`: ", each) for each in arguments)
        if title == "Returns:":
            yield f"Returns {rest.strip()[0].lower()}{' '.join(rest.split())[1:]}"


def attributes_table(cls: type) -> Table:
    """The attributes that a class's docstring names."""
    _, _, named = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): ((?:.+\n?)(?: {8}.+\n?)*)", named, re.MULTILINE)
    return [["Attribute", "What it is"], *([f"`.{name}`", sentence(told)] for name, told in found)]


def python_tables() -> dict[str, Table]:
    """What Python programs call, and what they get."""
    of_comparison = [name for name, member in vars(Comparison).items() if isinstance(member, property)]
    of_run = [name for name in vars(Run) if not name.startswith("_") and name != "open"]
    return {
        "functions": calls_table(python, ("open", "curate", "audit"), "altalign."),
        "run": calls_table(Run, of_run, "."),
        "comparison": calls_table(Comparison, of_comparison, "."),
        "explanation": attributes_table(Explanation),
        "gallery": attributes_table(Gallery),
    }


def readers_table() -> Table:
    """What other readers give of odd images, as their test expects it; – where they open no images."""
    readers = tomllib.loads((ROOT / "tests/cases/readers.toml").read_text(encoding="utf-8"))["reader"]
    odd = {"turned": "EXIF-turned JPEG", "deep": "16-bit PNG", "animated": "Animated WebP", "avif": "AVIF"}
    rows = [
        [
            f"{each['name'].partition(',')[0]} {each['version']}".strip(),
            each["opens"],
            *(each.get(name, "–") for name in odd),
        ]
        for each in readers
    ]
    return [["Reader", "Opens", *odd.values()], *rows]


def path_of(module: ModuleType) -> str:
    """Where a module's file is, from the repository's root; packages are links in altalign/."""
    return Path(str(module.__file__)).resolve().relative_to(ROOT).as_posix()


DOCUMENTS: Mapping[str, Callable[[], dict[str, Table]]] = {
    "docs/reference/commands.md": option_tables,
    "docs/reference/settings.md": lambda: settings_tables(CurateConfig, has_stages=True),
    "docs/reference/training-settings.md": lambda: settings_tables(SweepConfig, has_stages=False),
    "docs/reference/evaluation-sets.md": lambda: {
        "tasks": tasks_table(),
        **settings_tables(EvalSets, has_stages=False),
    },
    "docs/reference/scores.md": lambda: settings_tables(ScoreConfig, has_stages=False),
    "docs/reference/reasons.md": lambda: {stage.value: reasons_table(stage) for stage in REASONS},
    "docs/reference/stages.md": stage_tables,
    "docs/concepts/fidelity.md": fidelity_tables,
    "docs/reference/files.md": schema_tables,
    "docs/reference/errors.md": lambda: {"errors": errors_table()},
    "docs/reference/checks.md": lambda: {"checks": checks_table(), "not asked": not_asked_table()},
    "docs/reference/python.md": python_tables,
    "docs/guides/read-the-shards.md": lambda: {"readers": readers_table()},
    "docs/concepts/scale.md": lambda: {"constants": constants_table()},
}

if __name__ == "__main__":
    sys.exit(main())

"""The arrows between packages, read from the imports themselves."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# `altalign.filters` is a link in altalign/; `altalign` is the contract
PACKAGES = {"filters", "dedup", "pipelines", "audit", "demo", "train", "eval"}
OURS = {"altalign", "benchmarks", "experiments", "tests"} | PACKAGES
MAY_IMPORT = {
    "altalign": {"altalign"},
    "filters": {"altalign", "filters"},
    "dedup": {"altalign", "dedup", "filters"},
    "pipelines": {"altalign", "filters", "dedup", "pipelines"},
    "audit": {"altalign", "filters", "dedup", "audit"},
    "demo": {"altalign", "demo"},
    "eval": {"altalign", "eval", "filters"},  # thumbnails, as the report makes them
    "train": {"altalign", "eval", "filters", "train"},
}
# What Python programs call: its functions import the rooms, as the command line does by their names.
FACE = ROOT / "altalign" / "python.py"
COMMANDS = ROOT / "altalign" / "commands"  # above all rooms: a verb calls what it needs
MAY_CALL = {"altalign", "pipelines", "audit"}
HEAVY = {
    "altalign": {"apache_beam", "torch", "numba", "numpy"},
    "filters": {"apache_beam", "torch"},
    "dedup": {"apache_beam", "torch"},
    "audit": {"apache_beam", "torch"},
    "demo": {"apache_beam", "torch"},
    "pipelines": {"torch"},
    "eval": {"apache_beam"},
    "train": {"apache_beam"},
}


def package_of(module: str) -> str:
    """The layer of a module by its import name, or the top-level name of somebody else's."""
    first, _, rest = module.partition(".")
    second = rest.partition(".")[0]
    if first in PACKAGES:
        return f"{first}, without altalign. before it"
    return second if first == "altalign" and second in PACKAGES else first


def imports(path: Path) -> set[str]:
    """Layers, and top-level names of others, that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {package_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "altalign":
            found |= {package_of(f"altalign.{alias.name}") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(package_of(node.module))
    return found


MODULES = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    found = imports(path)
    may_import = MAY_CALL if path == FACE or path.parent == COMMANDS else MAY_IMPORT[package]
    assert {name for name in found if name in OURS or "without altalign" in name} <= may_import
    assert not found & HEAVY[package]


def test_rooms_are_imported_by_the_functions_of_python_programs_when_they_are_called() -> None:
    tree = ast.parse(FACE.read_text(encoding="utf-8"))
    at_once = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not {name for node in at_once for name in MAY_CALL - {"altalign"} if f"altalign.{name}" in ast.unparse(node)}


def test_nothing_but_the_command_line_imports_a_verb() -> None:
    for path in MODULES:
        if path.parent != COMMANDS:
            assert "altalign.commands" not in path.read_text(encoding="utf-8") or path.name in ("cli.py", "python.py")


def test_only_pipelines_import_beam() -> None:
    users = {path.relative_to(ROOT).parts[0] for path in MODULES if "apache_beam" in imports(path)}
    assert users == {"pipelines"}


STAGES = {"extract", "tables", "judge", "fetch", "decontaminate", "write"}


@pytest.mark.parametrize(
    "room",
    [
        "stages",
        "run",
        "evidence",
        "near",
        "images",
        "files",
        "engine",
        "card",
        "read",
        "web",
        "opening",
        "calibrate",
        "score",
        "select",
        "derive",
    ],
)
def test_nothing_but_the_pipeline_imports_a_stage(room: str) -> None:
    """Stages hand on what `pipelines/run/tables` declares; a stage's own parts stand beside it."""
    for path in (ROOT / "pipelines" / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("altalign.pipelines.stages"):
                names = {(node.module or "").rpartition(".")[2], *(alias.name for alias in node.names)}
                assert not names & STAGES, f"{path}: {ast.unparse(node)}"


def test_a_checkout_has_one_link_a_package_and_an_import_name_each() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "altalign").iterdir() if path.is_symlink()}
    assert links == {name: Path("..") / name for name in PACKAGES}
    (editable,) = (ROOT / ".editable").iterdir()  # what an editable installation puts on the path
    assert editable.readlink() == Path("../altalign")


def test_tests_benchmarks_and_experiments_import_by_the_installed_name() -> None:
    others = [
        path for folder in ("tests", "benchmarks", "experiments", "docs") for path in (ROOT / folder).rglob("*.py")
    ]
    assert not {f"{path}: {name}" for path in others for name in imports(path) if "without altalign" in name}

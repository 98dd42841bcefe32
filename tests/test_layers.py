"""The rooms in order, read from the imports themselves: imports go down only, and never in circles."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKS = ("dedup", "eval", "filters", "pipelines", "train")  # folders at the top, which `altalign/` links to

# From the ground up: a room imports what stands above it in this table. A module is in the room with the longest
# name that its own begins with; `altalign.` is left out.
ROOMS = (
    "errors",
    "terminal",
    "machine",
    "storage",
    "rules.rule",
    "filters.bounds",
    "filters.text",  # the rules, from which reasons follow
    "filters.image",
    "data",
    "settings",
    "rules",
    "pages",
    "filters",
    "dedup",
    "eval",
    "train.settings",
    "train.run",
    "train.data",
    "train.model",
    "train.step",
    "train.exchange",
    "models",  # curation and scores embed with models of a training: torch, which each imports when it is asked for
    "train.report",
    "train.evaluation",
    "train.loop",
    "train.nlip",
    "train",
    "pipelines.card",
    "pipelines.read",
    "pipelines.run",
    "pipelines.engine",
    "pipelines.images",
    "pipelines.web",
    "pipelines.figures",
    "pipelines.near",
    "pipelines.opening",
    "pipelines.stages",
    "pipelines.curate",
    "pipelines.derive",
    "pipelines.score",
    "pipelines.change",
    "pipelines.trial",
    "audit.run_folder",
    "audit.rows",
    "audit.explain",
    "audit.checks",
    "audit.report",
    "audit",
    "browse",
    "audit.opened",  # a run that is opened in Python can be searched
    "demo",
    "cli",
    "commands",
    "__main__",
    "python",  # what Python programs call: its functions import rooms when they are called (ADR 19)
)
FACE = {"altalign", "altalign.audit", "altalign.pipelines"}  # packages that are called, or hold nothing
BEAM = {"pipelines"}
TORCH = {"train", "eval", "models"}
WITHOUT_NUMPY = {"errors", "terminal", "machine", "data", "settings", "rules", "commands", "cli", "__main__", "python"}


def modules() -> dict[str, Path]:
    """Every module by its import name."""
    found = {}
    for top in ("altalign", *LINKS):
        for path in (ROOT / top).rglob("*.py"):
            if top == "altalign" and path.relative_to(ROOT / top).parts[0] in LINKS:
                continue
            parts = ("altalign", *path.relative_to(ROOT).with_suffix("").parts)
            parts = parts[1:] if top == "altalign" else parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """The modules that a module imports, wherever in it; of other packages the first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name if alias.name in MODULES else alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "altalign":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


IMPORTS = {module: imports(path) for module, path in MODULES.items()}


def room_of(module: str) -> int:
    """The place of a module's room in the table."""
    name = module.removeprefix("altalign.")
    fitting = [room for room in ROOMS if name == room or name.startswith(f"{room}.")]
    assert fitting, f"{module} is in no room of the table"
    return ROOMS.index(max(fitting, key=len))


@pytest.mark.parametrize("module", sorted(MODULES.keys() - FACE))
def test_imports_go_down(module: str) -> None:
    ours = {name for name in IMPORTS[module] if name in MODULES and name not in FACE}
    assert not {name for name in ours if room_of(name) > room_of(module)}


def test_no_string_goes_round_the_table() -> None:
    found = {
        (module, node.args[0].value)
        for module in MODULES.keys() - FACE
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
        if node.args and isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("altalign")
    }
    assert not found


def test_no_files_import_each_other_in_circles() -> None:
    graph = {module: {name for name in IMPORTS[module] if name in MODULES} - FACE for module in MODULES.keys() - FACE}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_no_library_that_its_room_does_without(module: str) -> None:
    top = module.split(".")[1] if module != "altalign" else module
    found = IMPORTS[module]
    assert "apache_beam" not in found or top in BEAM
    assert "torch" not in found or top in TORCH
    assert not found & {"numpy", "numba"} or top not in WITHOUT_NUMPY


def test_what_python_programs_call_imports_rooms_when_it_is_called() -> None:
    tree = ast.parse(MODULES["altalign.python"].read_text(encoding="utf-8"))
    at_once = [ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not [line for line in at_once if "altalign.pipelines" in line or "altalign.audit" in line]


def test_a_checkout_has_one_link_a_package_and_an_import_name_each() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "altalign").iterdir() if path.is_symlink()}
    assert links == {name: Path("..") / name for name in LINKS}
    (editable,) = (ROOT / ".editable").iterdir()  # what an editable installation puts on the path
    assert editable.readlink() == Path("../altalign")


def test_everything_imports_by_the_installed_name() -> None:
    others = [
        path for folder in ("tests", "benchmarks", "experiments", "docs") for path in (ROOT / folder).rglob("*.py")
    ]
    assert not {f"{path}: {name}" for path in (*others, *MODULES.values()) for name in imports(path) & {*LINKS}}

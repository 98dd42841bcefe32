"""The arrows between packages, read from the imports themselves."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"altalign", "filters", "dedup", "pipelines", "audit", "demo", "train", "eval", "benchmarks", "tests"}
MAY_IMPORT = {
    "altalign": {"altalign"},
    "filters": {"altalign", "filters"},
    "dedup": {"altalign", "dedup"},
    "pipelines": {"altalign", "filters", "dedup", "pipelines"},
    "audit": {"altalign", "filters", "dedup", "audit"},
    "demo": {"altalign", "demo"},
    "eval": {"altalign", "eval"},
    "train": {"altalign", "eval", "train"},
}
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


def imports(path: Path) -> set[str]:
    """Top-level names of all that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


MODULES = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    found = imports(path)
    assert found & OURS <= MAY_IMPORT[package]
    assert not found & HEAVY[package]


def test_only_pipelines_import_beam() -> None:
    users = {path.relative_to(ROOT).parts[0] for path in MODULES if "apache_beam" in imports(path)}
    assert users == {"pipelines"}

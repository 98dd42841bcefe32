"""Reads descriptions from source code: the docstrings of settings, and the comments of columns."""

import ast
import inspect
from collections.abc import Sequence
from itertools import pairwise, takewhile
from types import ModuleType


def docstrings(module: ModuleType) -> dict[str, str]:
    """The string below each assignment in a class: "Class.name" -> description."""
    found = {}
    for owner in ast.parse(inspect.getsource(module)).body:
        statements = owner.body if isinstance(owner, ast.ClassDef) else []
        for statement, below in pairwise(statements):
            match statement, below:
                case (
                    (ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)])),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[f"{owner.name}.{name}"] = " ".join(text.split())  # type: ignore[union-attr]
    return found


def comments(module: ModuleType, name: str) -> dict[str, str]:
    """The comment behind or above each ("column", …) of a list that a module gives this name: column -> description."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    values = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    entries = [
        node
        for value in values
        for node in ast.walk(value)
        if isinstance(node, ast.Tuple) and isinstance(node.elts[0], ast.Constant)
    ]
    return {
        ast.literal_eval(node.elts[0]): comment(lines, node.lineno - 1, (node.end_lineno or 1) - 1) for node in entries
    }


def comment(lines: Sequence[str], first: int, last: int) -> str:
    """The comment behind an entry of a list, else the lines of comment above it."""
    if behind := lines[last].partition("  # ")[2]:
        return behind
    above = list(takewhile(lambda line: line.startswith("#"), (line.strip() for line in reversed(lines[:first]))))
    return " ".join(line.removeprefix("# ") for line in reversed(above))


def sentence(text: str) -> str:
    """Text in one line that begins with a capital."""
    words = " ".join(text.split())
    return words[0].upper() + words[1:]

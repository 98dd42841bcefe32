"""Templates of Markdown and JSON. Their filters alone escape text, and each caller brings its own."""

from collections.abc import Callable, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

OPTIONS = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}


def template(path: Path, filters: Mapping[str, Callable[..., object]]) -> Template:
    """A template with these filters beside Jinja's own."""
    environment = Environment(loader=FileSystemLoader(path.parent), autoescape=False, **OPTIONS)
    environment.filters |= filters
    return environment.get_template(path.name)

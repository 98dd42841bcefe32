"""Templates, and those of Markdown and JSON: their filters alone escape text, and each caller brings its own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def environment_of(folders: Sequence[Path], *, is_html: bool) -> Environment:
    """The templates of some folders; those of HTML escape what they show."""
    options = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return Environment(loader=FileSystemLoader(folders), autoescape=is_html, **options)


def template(path: Path, filters: Mapping[str, Callable[..., object]]) -> Template:
    """A template with these filters beside Jinja's own."""
    environment = environment_of([path.parent], is_html=False)
    environment.filters |= filters
    return environment.get_template(path.name)

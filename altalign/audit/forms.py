"""Forms that a run fills in, as JSON and as Markdown: what it does not know is null, and "not known to the run"."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from altalign import storage
from altalign.pages import markdown

_TEMPLATE = Path(__file__).parent / "templates" / "form.md.jinja"
_SHOWN = 100  # rows of a table in Markdown


def write(folder: str, name: str, title: str, sections: Mapping[str, str], facts: Mapping[str, Any]) -> list[str]:
    """Write `NAME.md` and `NAME.json`, whose entries are `form` and these sections; returns the paths."""
    paths = [storage.join(folder, f"{name}.{ending}") for ending in ("md", "json")]
    template = markdown.template(_TEMPLATE, {"word": _word})
    text = template.render(
        title=title, facts=facts, titles=sections, shown_at_most=_SHOWN, name_of_json=storage.name(paths[1])
    )
    storage.write_bytes(paths[0], text.encode())
    storage.write_bytes(paths[1], (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    return paths


def _word(value: object) -> str:
    """A fact in Markdown."""
    if value is None:
        return "**not known to the run**"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_word, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value == {} else f"`{str(value).replace('`', '').replace('|', ' ')}`"

"""The page of a trial: one HTML file that loads nothing and runs nothing."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from altalign import storage
from altalign.audit.report import page
from altalign.pages import frame

_STYLES = ("page.css",)


def write(
    path: str,
    *,
    run: str,
    lead: str,
    lines: Sequence[Any],
    amounts: Sequence[tuple[str, str, str]],
    notes: Sequence[str],
) -> None:
    """Write the page.

    Args:
        path: the file.
        run: the folder of the run that was tried.
        lead: the result in a sentence.
        lines: `stage`, `reason`, `pairs`, `pairs_interval`, `images` and `images_interval` of each, in words.
        amounts: name, value and interval of bytes and time.
        notes: sentences that a reader has to know.
    """
    style = page.joined(_STYLES)
    template = page.environment().get_template("trial.html")
    head = {"style": Markup(style), "policy": frame.policy("", style)}
    text = template.render(run=run, lead=lead, lines=lines, amounts=amounts, notes=notes, **head)
    storage.write_bytes(path, text.encode("utf-8", "backslashreplace"))

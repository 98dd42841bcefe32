"""The page of a trial: one HTML file that loads nothing. Pipelines call `write` by its name."""

from markupsafe import Markup

from altalign import storage
from altalign.audit.report import page
from altalign.audit.report.galleries import Picture
from altalign.pages import frame
from altalign.trial_page import Page

_SCRIPTS, _STYLES = ("cards.js",), ("page.css",)


def write(shown: Page) -> int:
    """Write the page to its path; returns the exit code."""
    script, style = page.joined(_SCRIPTS), page.joined(_STYLES)
    made = page.environment().get_template("trial.html")
    texts = {"script": Markup(script), "style": Markup(style), "policy": frame.policy(script, style)}
    text = made.render(page=shown, picture=lambda of: Picture(of.picture) if of.picture else None, **texts)
    storage.write_bytes(shown.path, text.encode("utf-8", "backslashreplace"))
    return 0

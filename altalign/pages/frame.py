"""The frame of every page: one HTML file that loads nothing, whose templates escape what strangers wrote."""

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from altalign.pages import markdown, page_text

_HERE = Path(__file__).parent


def joined(names: Sequence[str], folder: Path) -> str:
    """The text of static files, of a folder or those of every page."""
    places = [folder / name if (folder / name).is_file() else _HERE / "static" / name for name in names]
    return "\n".join(place.read_text(encoding="utf-8").strip() for place in places)


def policy(script: str, style: str) -> str:
    """The content security policy: only this script, this style, and pictures inside the page."""
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (script, style))
    sources = "script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:".format(*digests)
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def data_uri(picture: bytes, kind: str = "webp") -> str:
    """A picture inside the page."""
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"


def inline(value: object) -> Markup:
    """A value as JSON that cannot close the element around it."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII only
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def environment(folder: Path) -> Environment:
    """The templates of a folder and those of every page, with their filters."""
    loader = FileSystemLoader([folder, _HERE / "templates"])
    environment = Environment(loader=loader, autoescape=True, **markdown.OPTIONS)
    filters = (page_text.number, page_text.size, page_text.link, isolated, url, code, breakable, lines, plain, quoted)
    environment.filters |= {each.__name__: each for each in filters}
    environment.globals |= {"share": page_text.share, "heat": heat}
    return environment


def rendered(
    folder: Path, template: str, *, styles: Sequence[str] = ("page.css",), scripts: Sequence[str] = (), **values: object
) -> bytes:
    """A page in UTF-8 that loads nothing and runs nothing but these scripts; `values` are what the template shows.

    The folder has `templates/` and `static/`, besides those of every page.
    """
    script, style = joined(scripts, folder / "static"), joined(styles, folder / "static")
    head = {"script": Markup(script), "style": Markup(style), "policy": policy(script, style)}
    text = environment(folder / "templates").get_template(template).render(**values, **head)
    return text.encode("utf-8", "backslashreplace")


# Filters -------------------------------------------------------------------------------------------------------------


def isolated(value: str, at_most: int = page_text.CAPTION_AT_MOST, is_cut_told: bool = True) -> Markup:  # noqa: FBT001, FBT002 - a filter's
    """An untrusted string, isolated from the text direction around it; if it is cut, says by how many characters."""
    shown, cut = page_text.shown(value, at_most), Markup("")
    if shown.left_out:
        rest = Markup(' <span class="cut">\u2026 {} characters more</span>').format(page_text.number(shown.left_out))
        cut = rest if is_cut_told else "\u2026"
    return Markup('<bdi dir="auto">{}</bdi>{}').format(shown.text, cut)


def plain(value: object, at_most: int = 300) -> str:
    """Plain words: our own, or from the run's files."""
    return page_text.shown(str(value), at_most).text


def url(value: str | None, at_most: int = page_text.URL_AT_MOST) -> Markup:
    """A URL as a link if it is http or https, otherwise as text."""
    if value is None:
        return Markup('<span class="none">none</span>')
    shown = page_text.shown(value, at_most)
    label = Markup('<bdi dir="ltr">{}{}</bdi>').format(shown.text, "\u2026" if shown.left_out else "")
    target = page_text.link(value)
    if not target:
        return label
    return Markup('<a href="{}" rel="noreferrer noopener" target="_blank">{}</a>').format(target, label)


def quoted(value: str) -> str:
    """A word of a command for a shell; one that is not printable is shown as it is elsewhere, and names nothing."""
    return shlex.quote(page_text.shown(value, page_text.LINK_AT_MOST).text)


def code(value: str) -> Markup:
    """A sentence of ours, with the parts between backticks as code."""
    parts = [escape(part) for part in value.split("`")]
    parts[1::2] = [Markup("<code>{}</code>").format(part) for part in parts[1::2]]
    return Markup("").join(parts)


def lines(value: str, at_most: int = 1_000) -> str:
    """A text of many lines, each cut and cleaned on its own."""
    every = value.splitlines()
    more = [f"\u2026 {len(every) - at_most:,} lines more"] if len(every) > at_most else []
    return "\n".join([*(page_text.shown(line, 500).text for line in every[:at_most]), *more])


def breakable(name: str) -> Markup:
    """A name that may wrap after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def heat(part: float, whole: float) -> str:
    """The CSS class for a part of a whole, in tenths."""
    return f"h{min(9, int(10 * part / whole))}" if part and whole else "h"

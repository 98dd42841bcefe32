"""Renders the numbers of a report as one HTML file that needs no other file and may load none."""

import base64
import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from altalign.audit.report import page_text
from altalign.audit.report.galleries import Galleries

if TYPE_CHECKING:  # it brings kernels, which templates need not wait for
    from altalign.audit.report.numbers import Numbers

TEXT_AT_MOST = 5_000_000  # bytes of the page without pictures
_CARDS_AT_MOST = (
    24,
    12,
    6,
    3,
    1,
    0,
)  # of each gallery, tried until the page fits; kept pairs have twice as many
_HERE = Path(__file__).parent
_CHARTS = "uPlot-1.6.32"
_SCRIPTS = (f"{_CHARTS}.iife.min.js", "charts.js", "what_if.js", "find.js", "cards.js", "page.js")
_STYLES = (f"{_CHARTS}.min.css", "page.css")


def html(numbers: "Numbers") -> bytes:
    """The whole page in UTF-8, with fewer cards if it would be too large."""
    script, style, found = joined(_SCRIPTS), joined(_STYLES), b""
    for cards in _CARDS_AT_MOST:
        galleries = numbers.galleries if cards == _CARDS_AT_MOST[0] else _fewer(numbers.galleries, cards)
        template = environment().get_template("report.html")
        page = template.render(
            numbers=replace(numbers, galleries=galleries),
            script=Markup(script),
            style=Markup(style),
            policy=policy(script, style),
            data=_inline(_data(numbers)),
        )
        found = page.encode("utf-8", "backslashreplace")
        if len(found) - _pictures(galleries) <= TEXT_AT_MOST:
            break
    return found


def joined(names: tuple[str, ...]) -> str:
    """The text of static files."""
    return "\n".join((_HERE / "static" / name).read_text(encoding="utf-8").strip() for name in names)


def policy(script: str, style: str) -> str:
    """The content security policy: only this script, this style, and pictures inside the page."""
    sources = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:"
    return f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"


def _hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _inline(value: object) -> Markup:
    """A value as JSON that cannot close the element around it."""
    said = json.dumps(value, separators=(",", ":"))  # ASCII only
    return Markup(said.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _data(numbers: "Numbers") -> dict[str, Any]:
    """The data that the scripts draw and add up."""
    charts = {
        each.key: {
            "labels": [part.label for part in each.bins],
            "kept": [part.kept for part in each.bins],
            "dropped": [part.dropped for part in each.bins],
            "names": [each.names.kept, each.names.dropped],
            "thresholds": [[threshold.label, threshold.at] for threshold in each.thresholds],
            "log": each.is_log,
        }
        for each in numbers.distributions
        if each.bins
    }
    found = numbers.what_if
    if found.judge is None:
        return {"charts": charts}
    told = {name: name for name in ("key", "setting", "stops", "labels", "at")}
    told |= {"below": "is_from_below", "text": "is_of_text"}
    sliders = [{short: getattr(slider, name) for short, name in told.items()} for slider in found.sliders]
    return {
        "charts": charts,
        "what_if": {
            "sliders": sliders,
            "judge": found.judge.packed(),
            "outcome": found.outcome.packed() if found.outcome else None,
            "kept_by_judge": found.kept_by_judge,
            "kept_at_the_end": found.kept_at_the_end,
            "searched": found.is_decontaminated,
            "within_pool": found.is_within_pool,
        },
    }


def _fewer(found: Galleries, cards: int) -> Galleries:
    samples = [
        replace(each, cards=each.cards[: 2 * cards if each.stage == "kept" else cards]) for each in found.samples or []
    ]
    return Galleries(samples, found.near)


def _pictures(found: Galleries) -> int:
    """How many bytes the pictures of a page take."""
    return sum(len(picture.uri) for picture in _shown(found))


def _shown(found: Galleries) -> Iterator[Any]:
    cards = (card.picture for gallery in found.samples or [] for card in gallery.cards)
    sides = (side for of_kind in (found.near or {}).values() for near in of_kind for side in (near.image, near.test))
    strip = (shot.card.picture for shot in (*found.strip.kept, *found.strip.dropped))
    yield from (picture for picture in (*cards, *sides, *strip) if picture and picture.is_shown)


@cache
def environment() -> Environment:
    """The templates, with their filters."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": page_text.number,
        "size": page_text.size,
        "said": said,
        "url": url,
        "code": code,
        "breakable": breakable,
        "lines": lines,
        "plain": plain,
        "link": page_text.link,
        "quoted": quoted,
    }
    environment.globals |= {"share": page_text.share, "heat": heat}
    return environment


# Filters -------------------------------------------------------------------------------------------------------------


def said(value: str, at_most: int = page_text.CAPTION_AT_MOST, is_cut_told: bool = True) -> Markup:  # noqa: FBT001, FBT002 - a filter's
    """An untrusted string, isolated from the text direction around it; if it is cut, says by how many characters."""
    shown, cut = page_text.shown(value, at_most), Markup("")
    if shown.left_out:
        told = Markup(' <span class="cut">\u2026 {} characters more</span>').format(page_text.number(shown.left_out))
        cut = told if is_cut_told else "\u2026"
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

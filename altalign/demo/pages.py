"""HTML as the web has it: many ways to write the same image element, some of which are no element at all.

`pages.toml` has them.
"""

import posixpath
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote, urlsplit

_WRITTEN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("pages.toml").read_text(encoding="utf-8"))
BAD_REFERENCES: list[str] = _WRITTEN["bad_references"]
_FORMS: dict[str, tuple[float, str]] = _WRITTEN["forms"]


@dataclass(frozen=True)
class Element:
    """An image element: a valid absolute URL or a bad reference, and its alt-text (None: no attribute)."""

    url: str
    alt: str | None
    form: str


def times(element: Element) -> int:
    """How many image elements of a page it is."""
    return 2 if element.form == "lazy noscript" else 1


def random_form(rng: Random) -> str:
    """The name of a way to write an element."""
    return rng.choices(list(_FORMS), [weight for weight, _ in _FORMS.values()])[0]


def html(
    url: str, language: str, title: str, elements: list[Element], rng: Random, *, meta_charset: str = ""
) -> tuple[str, int]:
    """The page at `url` with these elements; and how many image elements it has (some forms write two)."""
    parts = urlsplit(url)
    base = f"{parts.scheme}://{parts.netloc}/media/" if rng.random() < 0.08 else ""
    head = f'<meta charset="{meta_charset}">' if meta_charset else ""
    head += f'<title>{escape(title)}</title><link rel=stylesheet href="/style.css">' + (
        f'<base href="{base}">' if base else ""
    )
    body = [f"<h1>{escape(title)}</h1>"]
    for element in elements:
        text = _FORMS[element.form][1].format(s=_source(element.url, base or url, rng), a=_alt(element.alt, rng))
        body.append(rng.choice(("<p>{}", "<div>{}</div>", "<ul><li>{}</ul>", "<p>{}<br>")).format(text))
    if rng.random() < 0.3:
        body.insert(rng.randint(1, len(body)), rng.choice(_WRITTEN["decoys"]))
    count = sum(map(times, elements))
    return f'<!DOCTYPE html>\n<html lang="{language}"><head>{head}</head>\n<body>\n' + "\n".join(
        body
    ) + "\n</body></html>\n", count


def _source(url: str, base: str, rng: Random) -> str:
    """A reference to the URL, one of those that resolve to it; escaped for an attribute."""
    if url in BAD_REFERENCES:
        return escape(url)
    to, at = urlsplit(url), urlsplit(base)
    references = [url, url.replace(to.scheme, to.scheme.upper(), 1), unquote(url)]
    if to.scheme == at.scheme:
        references.append(f"//{to.netloc}{to.path}")
        if to.netloc == at.netloc:
            references += [to.path, to.path]
            if "//" not in to.path:
                relative = posixpath.relpath(to.path, posixpath.dirname(at.path))
                references += [relative, relative, f"./{relative}"]
    reference = rng.choice(references)
    if to.query and "?" not in reference:
        reference += f"?{to.query}"
    return escape(reference + ("#top" if rng.random() < 0.03 else ""))


def _alt(alt: str | None, rng: Random) -> str:
    if alt is None:
        return ""
    if not alt.strip():
        return rng.choice((' alt=""', " alt", ' alt="  "', ' alt="&nbsp;"', ' ALT=""'))
    if rng.random() < 0.03:
        alt = alt.replace(" ", "\n   ", 1)  # white space is one space in a caption
    return f' alt="{escape(alt)}"' + (' title="Picture"' if rng.random() < 0.1 else "")

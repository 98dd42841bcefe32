"""HTML as the web has it: many ways to write the same image element, some of which are no element at all."""

import posixpath
from dataclasses import dataclass
from html import escape
from random import Random
from urllib.parse import unquote, urlsplit

BLANK = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
BAD_REFERENCES = (
    "",
    "http://",
    "javascript:void(0)",
    BLANK,
    "http://[broken/a.png",
    "ftp://files.example/a.jpg",
    "http://bad host.example/a.jpg",
    "about:blank",
)

# How an element is written: weight, and the HTML with {s} for the reference and {a} for the alt attribute, its leading
# blank included.
_FORMS: dict[str, tuple[float, str]] = {
    "plain": (40, '<img src="{s}"{a}>'),
    "xhtml": (8, '<img{a} src="{s}" width="300" />'),
    "upper": (5, '<IMG SRC="{s}"{a} BORDER=0>'),
    "single quotes": (5, "<img class='photo' src='{s}'{a}>"),
    "lines": (4, '<img\n  loading=lazy\n  src=" {s}\n"\n {a}>'),
    "lazy": (5, f'<img src="{BLANK}" data-src="{{s}}"{{a}}>'),
    "lazy name": (2, '<img data-lazy-src="{s}"{a}>'),
    "lazy original": (2, '<img src="" data-original="{s}"{a}>'),
    "lazy noscript": (2, f'<img src="{BLANK}" data-src="{{s}}"{{a}}><noscript><img src="{{s}}"{{a}}></noscript>'),
    "noscript": (3, '<noscript><img src="{s}"{a}></noscript>'),
    "srcset": (3, '<img srcset="{s} 1x, {s} 2x"{a}>'),
    "data-srcset": (1, '<img data-srcset="{s} 320w"{a}>'),
    "sizes": (4, '<img src="{s}" srcset="/no-such.jpg 2x"{a}>'),
    "picture": (4, '<picture><source srcset="/no-such.webp" type="image/webp"><img src="{s}"{a}></picture>'),
    "figure": (4, '<figure><a href="{s}"><img src="{s}"{a}></a><figcaption>&copy; 2021</figure>'),
    "repeated": (1, '<img src="{s}" src="/no-such.jpg"{a}>'),
    "table": (3, '<table><tr><td><img src="{s}"{a}><td>&nbsp;</table>'),
}
# None of these counts.
_DECOYS = (
    '<template><img src="/template.jpg" alt="an image inside a template"></template>',
    '<!-- <img src="/comment.jpg" alt="an image inside a comment"> -->',
    '<script>document.write(\'<img src="/script.jpg" alt="an image inside a script">\')</script>',
    '<textarea><img src="/textarea.jpg" alt="an image inside a text area"></textarea>',
    (
        '<style>p { background: url("/style.png") } /* <img src="/style.jpg" alt="an image inside a style sheet"> '
        "*/</style>"
    ),
    '<input type="image" src="/button.png" alt="a button is no image element">',
)


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
        body.insert(rng.randint(1, len(body)), rng.choice(_DECOYS))
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

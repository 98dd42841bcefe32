"""Images of a page as selectolax (Lexbor) builds its document: the slow twin of `pages.images`."""

import ada_url
from selectolax.lexbor import LexborHTMLParser

from altalign.pipelines.read.pages.image_elements import ImageElement

SOURCES = ("src", "data-src", "data-lazy-src", "data-original")
SETS = ("srcset", "data-srcset")


def images(html: bytes, page_url: str) -> list[ImageElement]:
    """Of a page in UTF-8, in the order of the document."""
    document = LexborHTMLParser(html)
    base = _parsed(page_url, None)
    hrefs = [element.attributes["href"] or "" for element in document.tags("base") if "href" in element.attributes]
    if hrefs:
        href = _parsed(hrefs[0], base)
        base = base if href is None or href.startswith(("data:", "javascript:")) else href
    return [_image(element.attributes, base) for element in document.tags("img")]


def _image(attributes: dict[str, str | None], base: str | None) -> ImageElement:
    candidates = [(attributes.get(name) or "").strip() for name in SOURCES]
    for name in SETS:
        words = (attributes.get(name) or "").lstrip("\t\n\f\r ,").split()
        candidates.append(words[0].rstrip(",") if words else "")
    written = next((url for url in candidates if url and not url.lower().startswith("data:")), None)
    url = None if written is None else _parsed(written, base)
    if url is not None and not url.startswith(("http:", "https:")):
        url = None
    return ImageElement(
        None if url is None else url.partition("#")[0],
        written,
        (attributes["alt"] or "") if "alt" in attributes else None,
    )


def _parsed(url: str, base: str | None) -> str | None:
    try:
        return ada_url.URL(url, base).href
    except ValueError:
        return None

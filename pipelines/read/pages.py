"""Pages: image elements of an HTML document, their URLs and captions, and extract's verdict on each."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import ada_url
import pyarrow as pa
import pyarrow.compute as pc
from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser

from altalign.reasons import DropReason, all_reasons, drop_where, first_reason
from altalign.schema import EXTRACTED
from filters import captions
from pipelines.read import effort
from pipelines.read.charset import to_utf8

PAGE_BYTES = 16 << 20  # a larger page is a broken record; the largest real ones are of a few MB

_SOURCES = ("src", "data-src", "data-lazy-src", "data-original")
_SOURCE_SETS = ("srcset", "data-srcset")
_ASCII_SPACE = "\t\n\f\r "
_NO_BASE = ("data:", "javascript:")  # a <base href> of these schemes counts for nothing
_IMAGE = re.compile(rb"<ima?ge?", re.IGNORECASE)  # the parser makes <img> of <image>


class PageError(ValueError):
    """The page is too much to parse."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image element: its absolute URL, or null and what stands where the URL should be; alt as written, null where there is none."""

    url: str | None
    written: str | None
    alt: str | None


def images(body: bytes, page_url: str, http_charset: str | None) -> Iterator[Image]:
    """Every <img> of the document as a browser with scripting off builds it, in order.

    Raises:
        PageError: parsing it would take too long, or too much memory.
    """
    if len(body) > PAGE_BYTES:
        raise PageError(f"a page of more than {PAGE_BYTES >> 20} MiB")
    html = to_utf8(body, http_charset)
    if len(html) > PAGE_BYTES:
        raise PageError(f"a page of more than {PAGE_BYTES >> 20} MiB in UTF-8")
    if not _IMAGE.search(html):
        return
    too_much = effort.refusal(html)
    if too_much:
        raise PageError(too_much)
    document = LexborHTMLParser(html, options=LexborDocumentOptions.WO_EVENTS)
    base: str | None = None
    for number, element in enumerate(document.tags("img")):
        if number == 0:
            base = base_url(page_url, _base_href(document))
        attributes = element.attributes
        written = source_of(attributes)
        alt = (attributes["alt"] or "") if "alt" in attributes else None
        yield Image(None if written is None else resolve(written, base), written, alt)


def source_of(attributes: dict[str, str | None]) -> str | None:
    """The URL of an image element as written: the first attribute that has one, `data:` URIs aside."""
    for name in _SOURCES:
        value = (attributes.get(name) or "").strip()
        if _is_url(value):
            return value
    for name in _SOURCE_SETS:
        value = _first_of_set(attributes.get(name) or "")
        if _is_url(value):
            return value
    return None


def base_url(page_url: str, href: str | None) -> str | None:
    """What relative URLs of a page are resolved against; None where nothing valid is known.

    Args:
        page_url: the document's URL.
        href: of its first <base> that has one.
    """
    page = _parsed(page_url, None)
    base = None if href is None else _parsed(href, page)
    return page if base is None or base.startswith(_NO_BASE) else base


def resolve(url: str, base: str | None) -> str | None:
    """An absolute http(s) URL as a WHATWG parser serialises it, without its fragment; None where there is none."""
    absolute = _parsed(url, base)
    if absolute is None or not absolute.startswith(("http://", "https://")):
        return None
    return absolute.partition("#")[0]


def verdicts(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """`schema.EXTRACTED` of rows of (Image, page URL), each with every rule of extract that holds."""
    found: list[Image] = [row[0] for row in rows]
    url = cast(pa.StringArray, pa.array([image.url for image in found], pa.string()))
    alt = cast(pa.StringArray, pa.array([image.alt for image in found], pa.string()))
    caption = captions.clean(cast(pa.StringArray, alt.fill_null("")))
    every = [
        drop_where(alt.is_null(), DropReason.ALT_MISSING),
        drop_where(pc.and_(alt.is_valid(), pc.equal(caption, pa.scalar(""))), DropReason.ALT_EMPTY),
        drop_where(url.is_null(), DropReason.URL_INVALID),
    ]
    image_url = pc.coalesce(url, pa.array([image.written for image in found], pa.string()))
    page_url = pa.array([row[1] for row in rows], pa.string())
    return pa.record_batch([image_url, url, caption, page_url, first_reason(every), all_reasons(every)], schema=EXTRACTED)


def _base_href(document: LexborHTMLParser) -> str | None:
    for element in document.tags("base"):
        if "href" in element.attributes:
            return element.attributes["href"] or ""
    return None


def _first_of_set(value: str) -> str:
    """URL of the first image candidate of a `srcset`, as the HTML standard splits it."""
    words = value.lstrip(_ASCII_SPACE + ",").split(maxsplit=1)
    return words[0].rstrip(",") if words else ""


def _is_url(value: str) -> bool:
    return bool(value) and value[:5].lower() != "data:"


def _parsed(url: str, base: str | None) -> str | None:
    try:
        return cast(str, ada_url.URL(url, base).href)
    except (ValueError, UnicodeEncodeError):
        return None

"""Pages: image elements of a document, their URLs and captions, and extract's verdict on each."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html.entities import name2codepoint
from typing import Any, NamedTuple, cast
from xml.parsers import expat

import ada_url
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from webencodings import Encoding

from altalign.data.reasons import DropReason, drop_where, reasons_of
from altalign.data.schema import EXTRACTED
from altalign.filters import bounds, captions, text
from altalign.pipelines.read.pages import html_kernels as kernel
from altalign.pipelines.read.pages.charset import to_utf8, with_query_in
from altalign.pipelines.read.pages.html_kernels import COLUMNS, find_images

PAGE_BYTES = 16 << 20  # a larger page is a broken record; the largest real ones are of a few MB
IMAGES_AT_MOST = 750_000  # of a page; 40 MB of places

_ASCII_SPACE = "\t\n\f\r "
_SCHEMES = ("http://", "https://")
_NO_BASE = ("data:", "javascript:")  # a <base href> of these schemes counts for nothing
_SETS = COLUMNS.index("srcset")
_PLACES = 2 * len(COLUMNS)
_BLOCK = 8_192 * _PLACES
# URLs that a WHATWG parser leaves as they are (if they hold nothing that `_parsed` looks for): a special scheme, a host
# of ASCII names whose last is no number, path and query of characters that are never encoded. References to a path, and
# to one below the base's.
_PLAIN_URL = re.compile(
    r"https?://[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]+/[\w!$&()*+,;=:@%~./-]*(?:\?[\w!$&()*+,;=:@%~./?-]*)?", re.ASCII
)
_PLAIN_PATH = re.compile(r"/(?!/)[\w!$&()*+,;=:@%~./-]*", re.ASCII)
_PLAIN_REFERENCE = re.compile(r"[\w~-][\w!$&()*+,;=@%~./-]*", re.ASCII)


class PageError(ValueError):
    """The page is too much to parse."""


class ImageElement(NamedTuple):
    """An image element: its absolute URL (None if invalid), and its URL and alt as written (None if missing)."""

    url: str | None
    written: str | None
    alt: str | None

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return len(self.url or "") + len(self.written or "") + len(self.alt or "")


def images(body: bytes, page_url: str, http_charset: str | None, *, is_xml: bool = False) -> Iterator[ImageElement]:
    """Every <img> of the document as a browser with scripting off builds it, in order.

    `is_xml` says that it was served as XHTML.

    Raises:
        PageError: it is too large, or has too many images.
    """
    if len(body) > PAGE_BYTES:
        raise PageError(f"a page of more than {PAGE_BYTES >> 20} MiB")
    declared = _DECLARED.match(body) if is_xml else None
    html, encoding = to_utf8(body, http_charset or (declared[1].decode() if declared else None))
    if len(html) > PAGE_BYTES:
        raise PageError(f"a page of more than {PAGE_BYTES >> 20} MiB in UTF-8")
    if is_xml:
        if (well_formed := _images_of_xml(html)) is not None:
            base = base_url(page_url, well_formed[1], encoding)
            for attributes in well_formed[0]:
                sources = (source_of(attributes.get(name, ""), is_set="srcset" in name) for name in COLUMNS[:-1])
                written = next((url for url in sources if url), None)
                yield element(written, attributes.get(COLUMNS[-1]), base, encoding)
            return
        html = _ENDS_AT_ONCE.sub(rb"<\1\2></\1>", html)
    places, base_begin, base_end = find_images(np.frombuffer(html, np.uint8), name_table(), IMAGES_AT_MOST)
    if not len(places):
        return
    if len(places) > IMAGES_AT_MOST * _PLACES:
        raise PageError(f"a page of more than {IMAGES_AT_MOST:,} images")
    base = base_url(page_url, _value(html, base_begin, base_end) if base_begin >= 0 else None, encoding)
    for first in range(0, len(places), _BLOCK):
        numbers = iter(places[first : first + _BLOCK].tolist())
        for row in zip(*[numbers] * _PLACES, strict=True):
            alt = _value(html, row[-2], row[-1]) if row[-2] >= 0 else None
            yield element(_source_at(html, row), alt, base, encoding)


def element(written: str | None, alt: str | None, base: str | None, encoding: Encoding | None = None) -> ImageElement:
    """The element with this URL as written; `base` and `encoding` as in `resolve`."""
    return ImageElement(None if written is None else resolve(written, base, encoding), written, alt)


def _source_at(html: bytes, row: tuple[int, ...]) -> str | None:
    """As `source_of`, of the places of an image's attributes."""
    for column in range(len(COLUMNS) - 1):
        if row[2 * column] >= 0:
            url = source_of(_value(html, row[2 * column], row[2 * column + 1]), is_set=column >= _SETS)
            if url is not None:
                return url
    return None


def _value(html: bytes, begin: int, end: int) -> str:
    """An attribute's value that stands here, its references decoded."""
    value = html[begin:end]
    if b"&" in value or b"\r" in value or b"\0" in value:
        text = value.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\0", b"\xef\xbf\xbd").decode()
        return captions.decode_entities_in(text)
    return value.decode()


def source_of(value: str, *, is_set: bool) -> str | None:
    """The URL in an attribute, or the first one of a `srcset` (`is_set`); None if there is none, or a `data:` URI."""
    if is_set:  # split as the HTML standard says
        words = value.lstrip(_ASCII_SPACE + ",").split(maxsplit=1)
        value = words[0].rstrip(",") if words else ""
    url = value.strip()
    return url if url and url[:5].lower() != "data:" else None


def base_url(page_url: str, href: str | None, encoding: Encoding | None = None) -> str | None:
    """The base of a page's relative URLs, without a fragment; None if no valid one is known.

    `href` is that of its first <base> that has one; `encoding` as in `resolve`.
    """
    page = _parsed(page_url, None)
    base = None if href is None else _parsed(with_query_in(encoding, href) if encoding else href, page)
    return page if base is None or base.startswith(_NO_BASE) else base


def resolve(url: str, base: str | None, encoding: Encoding | None = None) -> str | None:
    """An absolute http(s) URL as a WHATWG parser serialises it, without its fragment; None if it is not valid.

    `base` is as `base_url` gives it, `encoding` that of the query where it is not UTF-8. A URL of more than
    `bounds.URL_BYTES` is cut, and is one byte longer then.
    """
    absolute = _parsed(with_query_in(encoding, url) if encoding else url, base)
    if absolute is None or not absolute.startswith(_SCHEMES):
        return None
    return absolute[: bounds.URL_BYTES + 1]  # a URL that is resolved is ASCII


def verdicts(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Turns rows of (ImageElement, page URL) into `schema.EXTRACTED`, each with all rules of extract that hold."""
    images: list[ImageElement] = [row[0] for row in rows]
    url = cast(pa.StringArray, pa.array([image.url for image in images], pa.string()))
    alt = cast(pa.StringArray, pa.array([image.alt for image in images], pa.string()))
    caption = bounds.cut(captions.clean(cast(pa.StringArray, alt.fill_null(""))), bytes_at_most=bounds.CAPTION_BYTES)
    written = cast(pa.StringArray, pa.array([image.written for image in images], pa.string()))
    image_url = bounds.cut(pc.coalesce(url, written), bytes_at_most=bounds.URL_BYTES)
    page_url = bounds.cut(cast(Any, pa.array([row[1] for row in rows], pa.string())), bytes_at_most=bounds.URL_BYTES)
    is_long = bounds.longer(url, bytes_at_most=bounds.URL_BYTES)
    identity = pc.if_else(pa.array(is_long), pa.scalar(None, pa.string()), url)
    every = [
        drop_where(alt.is_null(), DropReason.ALT_MISSING),
        drop_where(pc.and_(alt.is_valid(), pc.equal(caption, pa.scalar(""))), DropReason.ALT_EMPTY),
        drop_where(text.url_too_long(image_url, page_url), text.url_too_long.name),
        drop_where(text.url_invalid(identity.is_valid()), text.url_invalid.name),
    ]
    verdict, failed = reasons_of(every)
    none = pa.nulls(len(images), pa.string())  # pages name no rows, and have no columns to keep
    verdicts = verdict.dictionary_decode(), failed.dictionary_decode()
    return pa.record_batch([image_url, identity, caption, page_url, none, none, *verdicts], schema=EXTRACTED)


def _parsed(url: str, base: str | None) -> str | None:
    """A serialised URL without its fragment; None if it is not valid."""
    # parts . and .., maybe written as %2e; names that are checked
    if "/." not in url and "%2" not in url and "xn--" not in url:
        if url.startswith(_SCHEMES):
            if _PLAIN_URL.fullmatch(url):
                return url
        elif base is not None and base.startswith(_SCHEMES):
            if _PLAIN_REFERENCE.fullmatch(url):
                return base.partition("?")[0].rpartition("/")[0] + "/" + url
            if _PLAIN_PATH.fullmatch(url):
                return base[: base.index("/", len("https://"))] + url
    try:
        return (ada_url.normalize_url(url) if base is None else ada_url.join_url(base, url)).partition("#")[0]
    except ValueError:
        return None


# XHTML, by the rules of XML: what ends at once swallows nothing -------------------------------------------------------

_XML_BYTES = 4 << 20  # a larger page is read as HTML: the parser takes up to 100 bytes for each
_NAMESPACE = "http://www.w3.org/1999/xhtml "
_ENTITIES = "".join(f'<!ENTITY {name} "&#38;#{code};">' for name, code in name2codepoint.items()).encode()
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?\sencoding\s*=\s*["'](?!utf-?16)([\w.:-]+)""", re.IGNORECASE)
_ENDS_AT_ONCE = re.compile(
    rb"<(script|style|title|textarea|iframe|noframes|noembed|noscript|xmp|template)"
    rb"""(\s(?:"[^"]*"|'[^']*'|[^"'<>])*)?/>""",
    re.IGNORECASE,
)


class _NoPageError(Exception):
    """The root is no element of XHTML."""


def _images_of_xml(page: bytes) -> tuple[list[dict[str, str]], str | None] | None:
    """Attributes of the <img> elements of a page in UTF-8, and the `href` of its first <base> that has one.

    None where it is not well-formed, no XHTML, too large, or declares entities of its own, which may be without end.
    """
    if len(page) > _XML_BYTES or b"<!ENTITY" in page:
        return None
    elements, hrefs, open_templates, is_root = list[dict[str, str]](), list[str](), 0, True
    parser = expat.ParserCreate("utf-8", " ")

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal open_templates, is_root
        if is_root and name != _NAMESPACE + "html":
            raise _NoPageError
        is_root = False
        open_templates += name == _NAMESPACE + "template"
        if open_templates:
            return
        if name == _NAMESPACE + "img":
            elements.append(attributes)
        elif name == _NAMESPACE + "base" and "href" in attributes:
            hrefs.append(attributes["href"])

    def end(name: str) -> None:
        nonlocal open_templates
        open_templates -= name == _NAMESPACE + "template"

    def entities(context: str, *_: str | None) -> int:
        parser.ExternalEntityParserCreate(context).Parse(_ENTITIES, True)  # noqa: FBT003 - takes no names
        return 1

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.ExternalEntityRefHandler = entities  # of the document type, which is never asked for
    parser.UseForeignDTD()
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_ALWAYS)
    try:
        parser.Parse(page, True)  # noqa: FBT003
    except (expat.ExpatError, _NoPageError):
        return None
    return elements, next(iter(hrefs), None)


# The names that `html_kernels` knows, and their properties ------------------------------------------------------------

_CLASSES = {
    kernel.IMG: "img",
    kernel.IMAGE: "image",
    kernel.BASE: "base",
    kernel.TEMPLATE: "template",
    kernel.SVG: "svg",
    kernel.MATH: "math",
    kernel.RAW: "script style textarea title xmp iframe noembed noframes plaintext",
    kernel.SCRIPT: "script",
    kernel.PLAINTEXT: "plaintext",
    kernel.FRAMESET: "frameset",
    # These, and text, make a later <frameset> void.
    kernel.HAS_CONTENT: "applet area body br button dd dt embed hr iframe image img input keygen li listing marquee "
    "object pre select table textarea wbr xmp",
    # Start tags that end SVG and MathML.
    kernel.BREAKS_OUT: "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li "
    "listing menu meta nobr ol p pre ruby s small span strong strike sub sup table tt u ul var",
    kernel.FONT: "font",
    kernel.SVG_INTEGRATION: "foreignobject desc title",
    kernel.MATH_TEXT: "mi mo mn ms mtext",
    kernel.GLYPH: "mglyph malignmark",
    kernel.ANNOTATION: "annotation-xml",
    # HTML elements without an end tag, or that need none.
    kernel.UNTRACKED: "area base basefont bgsound body br caption col colgroup dd dt embed frame head hr html image "
    "img input keygen li link meta optgroup option p param rb rp rt rtc source tbody td tfoot th thead tr track wbr",
    kernel.P_OR_BR: "br p",
}
# Of these it is known how many are open, and so whether an end tag in SVG or MathML is theirs.
_COUNTED = (
    "a abbr address article aside b big blockquote button caption center cite code dd del details dialog dir div dl "
    "dt em fieldset figcaption figure font footer h1 h2 h3 h4 h5 h6 header hgroup i ins kbd label legend li main mark "
    "menu nav nobr object ol optgroup option p picture pre q ruby s samp section select small span strike strong "
    "sub summary sup table tbody td tfoot th thead time tr tt u ul var video"
)
_OTHER_COLUMNS = {
    "href": kernel.HREF,
    "encoding": kernel.ENCODING,
    "color": kernel.FONT_STYLE,
    "face": kernel.FONT_STYLE,
    "size": kernel.FONT_STYLE,
}


@cache
def name_table() -> np.ndarray:
    """Hash table of the names of elements and attributes: uint64[2, slots], hashes (0: free) and what they are."""
    classes: dict[str, int] = {}
    for bit, names in _CLASSES.items():
        for name in names.split():
            classes[name] = classes.get(name, 0) | bit
    for name, column in [*zip(COLUMNS, range(len(COLUMNS)), strict=True), *_OTHER_COLUMNS.items()]:
        classes[name] = classes.get(name, 0) | (column + 1) << kernel.COLUMN
    for number, name in enumerate(_COUNTED.split(), 1):
        classes[name] = classes.get(name, 0) | number << kernel.NUMBER
    slots = np.zeros((2, kernel.SLOTS), np.uint64)
    for name, flags in classes.items():
        hashed = 0
        for byte in name.encode():
            hashed = (hashed * kernel.MULTIPLIER + byte + 1) % (1 << 64)
        slot = hashed % kernel.SLOTS
        while slots[0, slot]:
            slot = (slot + 1) % kernel.SLOTS
        slots[:, slot] = hashed, flags
    return slots

"""Pages: image elements of a document, their URLs and captions, and extract's verdict on each."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import ada_url
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from altalign.data.reasons import DropReason, drop_where, reasons_of
from altalign.data.schema import EXTRACTED
from altalign.filters import bounds, captions, text
from altalign.pipelines.read.pages.charset import to_utf8, with_query_in
from altalign.pipelines.read.pages.html_kernels import COLUMNS, META_PLACES, find_images, name_table

PAGE_BYTES = 16 << 20  # a larger page is a broken record; the largest real ones are of a few MB
IMAGES_AT_MOST = 750_000  # of a page; 40 MB of places
META_BYTES = 16_384  # of the content of a <meta>; what is beyond is cut off

_ASCII_SPACE = "\t\n\f\r "
_SCHEMES = ("http://", "https://")
_NO_BASE = ("data:", "javascript:")  # a <base href> of these schemes counts for nothing
_SETS = COLUMNS.index("srcset")
_PLACES = 2 * len(COLUMNS)
_BLOCK = 8_192 * _PLACES
# an encoding that the first line of XHTML declares; what declares UTF-16 in ASCII is not in it
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?\sencoding\s*=\s*["'](?!utf-?16)([\w.:-]+)""", re.IGNORECASE)
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


def images(
    body: bytes,
    page_url: str,
    http_charset: str | None,
    *,
    is_xml: bool = False,
    metas: list[tuple[str, str]] | None = None,
    named: tuple[str, ...] = (),
) -> Iterator[ImageElement]:
    """Every <img> of the document as a browser with scripting off builds it, in order.

    Args:
        body: the page's bytes.
        page_url: its URL.
        http_charset: charset of the HTTP header's content type, if it has one.
        is_xml: whether it was served as XHTML.
        metas: gets name and content of each <meta> that has one of the names `named` (lower case), before the first
            image is yielded.
        named: the names of the metas that are wanted.

    Raises:
        PageError: it is too large, or has too many images.
    """
    if len(body) > PAGE_BYTES:
        raise PageError(f"a page of more than {PAGE_BYTES >> 20} MiB")
    if is_xml and http_charset is None and (declared := _DECLARED.match(body)):
        http_charset = declared[1].decode()
    html, codec = to_utf8(body, http_charset)
    if len(html) > PAGE_BYTES:
        raise PageError(f"a page of more than {PAGE_BYTES >> 20} MiB in UTF-8")
    places, metas_end, base_begin, base_end = find_images(
        np.frombuffer(html, np.uint8), name_table(named), IMAGES_AT_MOST, int(is_xml)
    )
    if len(places) == META_PLACES:
        return
    if len(places) > META_PLACES + IMAGES_AT_MOST * _PLACES:
        raise PageError(f"a page of more than {IMAGES_AT_MOST:,} images")

    def value(begin: int, end: int) -> str:
        """An attribute's value that stands here, its references decoded."""
        written = html[begin:end]
        if b"&" in written or b"\r" in written or b"\0" in written:
            written = written.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\0", b"\xef\xbf\xbd")
            return captions.decode_entities_in(written.decode("utf-8", "ignore"))
        return written.decode("utf-8", "ignore")

    if metas is not None and metas_end:
        for begin, end, first, last in places[:metas_end].reshape(-1, 4).tolist():
            metas.append((value(begin, end), value(first, min(last, first + META_BYTES))))
    base = base_url(page_url, value(base_begin, base_end) if base_begin >= 0 else None, codec)
    for first in range(META_PLACES, len(places), _BLOCK):
        numbers = iter(places[first : first + _BLOCK].tolist())
        for row in zip(*[numbers] * _PLACES, strict=True):
            written = None
            for column in range(len(COLUMNS) - 1):
                if row[2 * column] >= 0:
                    written = source_of(value(row[2 * column], row[2 * column + 1]), is_set=column >= _SETS)
                    if written is not None:
                        break
            yield element(written, value(row[-2], row[-1]) if row[-2] >= 0 else None, base, codec)


def element(written: str | None, alt: str | None, base: str | None, codec: str | None = None) -> ImageElement:
    """The element with this URL as written; `base` and `codec` as in `resolve`."""
    return ImageElement(None if written is None else resolve(written, base, codec), written, alt)


def source_of(value: str, *, is_set: bool) -> str | None:
    """The URL in an attribute, or the first one of a `srcset` (`is_set`); None if there is none, or a `data:` URI."""
    if is_set:  # split as the HTML standard says
        words = value.lstrip(_ASCII_SPACE + ",").split(maxsplit=1)
        value = words[0].rstrip(",") if words else ""
    url = value.strip()
    return url if url and url[:5].lower() != "data:" else None


def base_url(page_url: str, href: str | None, codec: str | None = None) -> str | None:
    """The base of a page's relative URLs, without a fragment; None if no valid one is known.

    `href` is that of its first <base> that has one; `codec` as in `resolve`.
    """
    page = _parsed(page_url, None)
    base = None if href is None else _parsed(with_query_in(codec, href), page)
    return page if base is None or base.startswith(_NO_BASE) else base


def resolve(url: str, base: str | None, codec: str | None = None) -> str | None:
    """An absolute http(s) URL as a WHATWG parser serialises it, without its fragment; None if it is not valid.

    `base` is as `base_url` gives it, `codec` that of the query where it is not UTF-8. A URL of more than
    `bounds.URL_BYTES` is cut, and is one byte longer then.
    """
    absolute = _parsed(with_query_in(codec, url), base)
    if absolute is None or not absolute.startswith(_SCHEMES):
        return None
    return absolute[: bounds.URL_BYTES + 1]  # a URL that is resolved is ASCII


def verdicts(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Turns rows of (ImageElement, page URL, what the page says) into `schema.EXTRACTED`, with all rules that hold."""
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
    said = pa.array([row[2] for row in rows], pa.string())
    verdicts = verdict.dictionary_decode(), failed.dictionary_decode()
    return pa.record_batch([image_url, identity, caption, page_url, none, none, said, *verdicts], schema=EXTRACTED)


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

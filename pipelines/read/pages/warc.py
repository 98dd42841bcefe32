"""Web archives: pages give candidates, every successful response and every resource is the place of an image.

All responses of status 200 are places, pages too: an image's URL that shows a page is an image that cannot be decoded,
not one that is not in the archive. A place's URL is serialised as pages give theirs. A revisit record has its image in
another record, maybe of another archive: names of payloads tell in which, once all archives are read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from fastwarc.warc import WarcRecordType

from altalign import storage
from altalign.data.preferences import as_text, from_text
from altalign.errors import UnreadableError
from altalign.filters import captions
from altalign.filters.image_headers import sniff
from altalign.filters.reservations import HEADERS, Said, of_headers, of_metas
from altalign.pipelines.read.coding import CodingError, decoded_of_archive
from altalign.pipelines.read.pages import image_elements
from altalign.pipelines.read.pages.image_elements import ImageElement
from altalign.pipelines.read.pages.records import (
    PAGE_TYPES,
    XHTML,
    BrokenRecord,
    Http,
    Keep,
    Record,
    first_record,
    records,
)
from altalign.pipelines.read.stretches import LINE_BYTES, Gatherer, Stretch, readable
from altalign.pipelines.read.tables.lines import parse_json

IMAGE_BYTES = 256 << 20  # of a body; what is beyond is cut off, and then no decoder takes the rest for an image
# in search of an image, so many records each from the start and from behind these shares of an archive: some programs
# write all pages first
LOOKED_AT, BEHIND = 500, (0.0, 0.25, 0.5, 0.75, 0.9)
_FIRST_BYTES = 64
# headers that tell of which record a payload is, in that record and in a revisit record
_ITS_OWN = b"warc-record-id", b"warc-date"
_OF_THE_FIRST = b"warc-refers-to", b"warc-refers-to-date"
_DATE = len("2026-01-01T00:00:00")
# a body without a type is a page by its first bytes, as the WHATWG MIME Sniffing standard says
_UNKNOWN = ("", "unknown/unknown", "application/unknown")
_BEGINS_PAGE = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?<"
    rb"(?:!--|(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p)[ >])",
    re.IGNORECASE,
)
_SNIFFED = 1_445
_IMAGE_PATH = "IMG@/src"  # of a link in a WAT
_HTTP_BYTES = 1 << 20  # so much more than its body may a page's payload be: chunk sizes
# of a page that was copied because it may be asked for as an image: enough to see that it is none
_PAGE_HEAD_BYTES = 1_024
# what origins say of all that they have: of an origin these come from, in this order
NOTICES = ("/robots.txt", "/.well-known/tdmrep.json")
_METAS = ("robots", "tdm-reservation", "tdm-policy")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


class Captured(NamedTuple):
    """The decoded bytes of a record, what its headers say of their use, and when it was made (UTC)."""

    data: bytes
    said: Sequence[Said] = ()
    when: str | None = None

    def copied(self) -> bytes:
        """The same as bytes: where an archive cannot be read at an offset, they are copied so."""
        return f"{self.when or ''} {as_text(self.said)}\n".encode("utf-8", "replace") + self.data

    @classmethod
    def of_copy(cls, copied: bytes) -> "Captured":
        """What was copied."""
        head, _, data = copied.partition(b"\n")
        when, _, said = head.decode().partition(" ")
        return cls(data, from_text(said), when or None)


def read(path: str, token: str = "") -> Iterator[Stretch]:
    """Reads all candidates and places of images in an archive; `token` is the name by which pages address this robot.

    Raises:
        UnreadableError: it is no archive, or the disk fails.
    """
    return _gathered(path, _bytes_to_keep, partial(_take, token=token))


def read_metadata(path: str, token: str = "") -> Iterator[Stretch]:
    """All candidates in the metadata records (WAT) of an archive; it has no images.

    Raises:
        UnreadableError: it is no archive, or the disk fails.
    """
    take = partial(_take_metadata, token=token)
    return _gathered(path, lambda kind, *_: LINE_BYTES + 1 if kind == WarcRecordType.metadata else 0, take)


def _gathered(path: str, keep: Keep, take: Callable[[Record, Gatherer], Iterator[Stretch]]) -> Iterator[Stretch]:
    """What `take` gathers of the records of an archive; where it raises ValueError, the record is broken."""
    gatherer = Gatherer(path, image_elements.verdicts)
    for record in records(path, keep):
        try:
            if isinstance(record, BrokenRecord):
                raise ValueError(record.error)
            yield from take(record, gatherer)
        except ValueError as error:
            gatherer.broken(record.offset, str(error))
        if gatherer.full:
            yield gatherer.take()
    yield gatherer.take()


def captured(path: str, offset: int, opened: BinaryIO | None = None, *, token: str = "") -> Captured | None:
    """The image of the WARC record at `offset`, read from `opened` if the file is already open.

    Returns:
        None if there is no record, or the file ends before it.

    Raises:
        UnreadableError: the disk fails.
    """
    with readable(path, "WARC"), nullcontext(opened) if opened else storage.open_read(path) as file:
        record = first_record(file, offset, IMAGE_BYTES)
        return None if record is None else _captured(record, token)


def look_for_images(path: str) -> tuple[int, bool]:
    """Looks at some records of an archive: how many, and whether one of them may be an image.

    An archive that cannot be read may hold anything: reading it raises the error.
    """
    looked_at = set[int]()
    try:
        for behind in BEHIND:
            for record in islice(records(path, lambda *_: _FIRST_BYTES, behind=behind), LOOKED_AT):
                looked_at.add(record.offset)
                if isinstance(record, Record) and _is_success(record):
                    kind = record.http.content_type if record.http else ""
                    if kind.startswith("image/") or sniff(record.payload) is not None:
                        return len(looked_at), True
    except UnreadableError:
        return len(looked_at), True
    return len(looked_at), False


def _bytes_to_keep(kind: WarcRecordType, http: Http | None, can_be_read_again: bool) -> int:  # noqa: FBT001 - a callback
    if kind == WarcRecordType.response and http is not None and http.status == 200:
        if http.content_type in PAGE_TYPES or (http.content_type in _UNKNOWN and can_be_read_again):
            return image_elements.PAGE_BYTES + _HTTP_BYTES
    elif kind != WarcRecordType.resource:
        return 0
    return 0 if can_be_read_again else IMAGE_BYTES


def _is_success(record: Record) -> bool:
    if record.kind == WarcRecordType.response:
        return record.http is not None and record.http.status == 200
    return record.kind == WarcRecordType.resource


def _take(record: Record, gatherer: Gatherer, *, token: str) -> Iterator[Stretch]:
    """The place of the record, and the images of its page."""
    if not _is_success(record):
        status = record.http.status if record.http is not None else None
        if record.kind == WarcRecordType.response and record.http is not None and status is None:
            raise ValueError("no HTTP status line")
        if record.kind == WarcRecordType.revisit and status in (None, 200, 304):
            url = image_elements.resolve(record.url, None)
            first = image_elements.resolve(record.head.get(b"warc-refers-to-target-uri") or record.url, None)
            if url is not None:
                gatherer.revisit(url, _payload_names(record, _OF_THE_FIRST, first))
        return
    if not record.url:
        raise ValueError("no WARC-Target-URI")
    url, is_page = image_elements.resolve(record.url, None), _is_page(record)
    if url is not None:
        if record.can_be_read_again:
            gatherer.place(url, record.offset, None, None)
        else:
            found = _captured(record, token)
            is_surely_page = is_page and not url.endswith(NOTICES) and b"\0" not in found.data[:_PAGE_HEAD_BYTES]
            if is_surely_page:
                found = found._replace(data=found.data[:_PAGE_HEAD_BYTES])
            gatherer.place(url, None, None, found.copied())
        if url.endswith(NOTICES):
            gatherer.notice()
        if not is_page:
            gatherer.payload(_payload_names(record, _ITS_OWN, url))
    if is_page:
        charset, kind = (record.http.charset, record.http.content_type) if record.http else (None, "")
        body, metas, said = _body(record, image_elements.PAGE_BYTES), list[tuple[str, str]](), None
        headers, named = record.http.said if record.http else {}, (*_METAS, token) if token else _METAS
        page = image_elements.images(body, record.url, charset, is_xml=kind == XHTML, metas=metas, named=named)
        for image in page:
            if said is None:
                is_silent = not (headers or metas)  # as most are, so that nothing else is looked up
                said = "" if is_silent else _of_page(headers, metas, record.head.get(b"warc-date"), token)
            gatherer.row((image, record.url, said), size=image.size + len(record.url) + len(said))
            if gatherer.full:
                yield gatherer.take()


def _of_page(headers: Mapping[str, Sequence[str]], metas: Sequence[tuple[str, str]], date: str, token: str) -> str:
    """What a page says, as `preferences.as_text` writes it."""
    when = _when(date)
    return as_text([*of_headers(headers, token, "page header", when), *of_metas(metas, token, when)])


def _when(date: str) -> str | None:
    """A WARC-Date in UTC, in seconds; None where it is none."""
    match = _TIME.match(date)
    return f"{match[0]}Z" if match else None


def _is_page(record: Record) -> bool:
    if record.http is None or record.http.content_type not in _UNKNOWN:
        return record.http is not None and record.http.content_type in PAGE_TYPES
    try:
        return _BEGINS_PAGE.match(_body(record, _SNIFFED)) is not None
    except CodingError:
        return False


def _payload_names(record: Record, headers: tuple[bytes, bytes], url: str | None) -> list[str]:
    """What revisit records may call a payload that came from this URL, the surest first."""
    record_id, date, digest = map(record.head.get, (*headers, b"warc-payload-digest"))
    captured = f"{date[:_DATE]} {url}" if date else ""
    return [name for name in (record_id, captured, digest.lower()) if name]


def _captured(record: Record, token: str) -> Captured:
    """The decoded body of a record; if its encoding is broken, the body as it is."""
    try:
        data = _body(record, IMAGE_BYTES)
    except CodingError:
        data = record.payload
    when = _when(record.head.get(b"warc-date"))
    return Captured(data, of_headers(record.http.said, token, "image header", when) if record.http else (), when)


def _body(record: Record, bytes_at_most: int) -> bytes:
    if record.http is None:
        return record.payload
    return decoded_of_archive(
        record.payload,
        transfer_encoding=record.http.transfer_encoding,
        content_encoding=record.http.content_encoding,
        bytes_at_most=bytes_at_most,
    )


def _take_metadata(record: Record, gatherer: Gatherer, *, token: str) -> Iterator[Stretch]:
    """The images of the page, if any, that a metadata record (WAT) is about."""
    if record.kind == WarcRecordType.metadata:
        for image, page_url, said in images_of_metadata(record.payload, token):
            gatherer.row((image, page_url, said), size=image.size + len(page_url) + len(said))
    yield from ()


def images_of_metadata(metadata: bytes, token: str) -> list[tuple[ImageElement, str, str]]:
    """The images of one page, each with its URL and what it says; empty if the record is of no page of status 200."""
    if len(metadata) > LINE_BYTES:
        raise ValueError(f"longer than {LINE_BYTES >> 20} MiB")
    parsed: Any = parse_json(metadata)
    try:
        envelope = parsed.get("Envelope", {})
        response = envelope.get("Payload-Metadata", {}).get("HTTP-Response-Metadata", {})
        status = response.get("Response-Message", {}).get("Status")
        html = response.get("HTML-Metadata", {})
        links, base = html.get("Links") or [], html.get("Head", {}).get("Base")
        page_url, date = map(envelope.get("WARC-Header-Metadata", {}).get, ("WARC-Target-URI", "WARC-Date"))
        headers, metas = (response.get("Headers") or {}).items(), html.get("Head", {}).get("Metas")
    except AttributeError:
        raise ValueError("a part of the metadata is no object") from None
    if str(status or 200) != "200" or not links:
        return []
    if not isinstance(links, list):
        raise ValueError("Links is no list")
    if not isinstance(page_url, str) or not page_url:
        raise ValueError("no WARC-Target-URI")
    if not isinstance(metas or [], list):
        raise ValueError("Metas is no list")

    def text(value: object) -> str | None:
        """A string of the metadata with character references decoded; None if it is not a string."""
        return captions.decode_entities_in(value) if isinstance(value, str) else None

    named = [(text(each.get("name")), text(each.get("content"))) for each in metas or () if isinstance(each, dict)]
    of_use = [(name, content) for name, content in named if name and content is not None]
    said = _of_page(_headers_of_metadata(headers), of_use, date if isinstance(date, str) else "", token)
    resolved, images = image_elements.base_url(page_url, text(base)), []
    for link in links:
        if isinstance(link, dict) and link.get("path") == _IMAGE_PATH:
            written = image_elements.source_of(text(link.get("url")) or "", is_set=False)
            images.append((image_elements.element(written, text(link.get("alt")), resolved), page_url, said))
    return images


def _headers_of_metadata(headers: Iterable[tuple[str, object]]) -> dict[str, list[str]]:
    """The headers about use by their names in lower case; one that came several times may be a list."""
    lists = {name.lower(): value if isinstance(value, list) else [value] for name, value in headers}
    return {name: [each for each in lists[name] if isinstance(each, str)] for name in HEADERS if name in lists}

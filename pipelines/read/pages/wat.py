"""Reads metadata of web archives (WAT): images of pages without the pages, as JSON links of path `IMG@/src`."""

from collections.abc import Iterator, Mapping

from fastwarc.warc import WarcRecordType

from altalign.filters import captions
from altalign.pipelines.read.pages import image_elements
from altalign.pipelines.read.pages.records import BrokenRecord, records
from altalign.pipelines.read.stretches import LINE_BYTES, Gatherer, Stretch
from altalign.pipelines.read.tables.lines import parse_json

_IMAGE_PATH = "IMG@/src"


def read(path: str) -> Iterator[Stretch]:
    """All candidates in the metadata records of an archive; it has no images.

    Raises:
        UnreadableError: it is no archive, or the disk fails.
    """
    gatherer = Gatherer(path, image_elements.verdicts)
    for record in records(path, lambda kind, *_: LINE_BYTES + 1 if kind == WarcRecordType.metadata else 0):
        gatherer.read = record.offset
        if isinstance(record, BrokenRecord):
            gatherer.broken(record.offset, record.error)
        elif record.kind == WarcRecordType.metadata:
            try:
                found = images(record.payload)
            except ValueError as error:
                gatherer.broken(record.offset, str(error))
                continue
            for image, page_url in found:
                gatherer.row((image, page_url), size=image.size + len(page_url))
        if gatherer.full:
            yield gatherer.take()
    yield gatherer.take()


def images(metadata: bytes) -> list[tuple[image_elements.ImageElement, str]]:
    """The images of one page, each with the page's URL; empty if the record is not about a page of status 200.

    Raises:
        ValueError: no JSON, of another form than a WAT's, or without the page's URL.
    """
    if len(metadata) > LINE_BYTES:
        raise ValueError(f"longer than {LINE_BYTES >> 20} MiB")
    envelope = _in(parse_json(metadata), "Envelope")
    response = _in(envelope, "Payload-Metadata", "HTTP-Response-Metadata")
    html = _in(response, "HTML-Metadata")
    links = html.get("Links") or []
    if str(_in(response, "Response-Message").get("Status") or 200) != "200" or not links:
        return []
    if not isinstance(links, list):
        raise ValueError("Links is no list")
    page_url = _in(envelope, "WARC-Header-Metadata").get("WARC-Target-URI")
    if not isinstance(page_url, str) or not page_url:
        raise ValueError("no WARC-Target-URI")
    base = image_elements.base_url(page_url, _text(_in(html, "Head").get("Base")))
    return [
        (_image(link, base), page_url) for link in links if isinstance(link, dict) and link.get("path") == _IMAGE_PATH
    ]


def _image(link: Mapping[str, object], base: str | None) -> image_elements.ImageElement:
    written = image_elements.source_of(_text(link.get("url")) or "", is_set=False)
    return image_elements.ImageElement(
        None if written is None else image_elements.resolve(written, base), written, _text(link.get("alt"))
    )


def _text(value: object) -> str | None:
    """A string of the metadata with character references decoded; None if it is not a string."""
    return captions.decode_entities_in(value) if isinstance(value, str) else None


def _in(value: object, *names: str) -> dict[str, object]:
    """The object at a path of names; empty if there is none.

    Raises:
        ValueError: something other than an object is there.
    """
    for name in names:
        value = _object(value, "the metadata").get(name)
        value = {} if value is None else _object(value, name)
    return _object(value, "the metadata")


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no object")
    return value

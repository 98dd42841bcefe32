"""Reads a demo web in the plainest way, to check what it holds: no code of ours but the index, and the rules of a
curation as loops.
"""

import gzip
import io
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import ada_url
from PIL import Image
from selectolax.lexbor import LexborHTMLParser

from altalign.demo.archive import Capture, read_index, read_record

_WORDS = re.compile(r"[぀-ヿ㐀-鿿]ー?|[^\W぀-ヿ㐀-鿿]+")
_ATTRIBUTES = ("src", "data-src", "data-lazy-src", "data-original", "srcset", "data-srcset")


@dataclass(frozen=True)
class Pair:
    url: str
    caption: str
    page_url: str
    language: str


def captures(folder: Path) -> list[Capture]:
    """In input order."""
    return sorted(read_index(folder / "index.cdxj"), key=lambda capture: (capture.file, capture.offset))


def is_page(capture: Capture) -> bool:
    return capture.status == 200 and "/page-" in capture.url


def body(folder: Path, capture: Capture) -> tuple[str, bytes]:
    """Content-Type as sent, and the body as meant."""
    head, block = read_record(folder, capture)
    if "WARC-Type: response" not in head:
        return capture.media_type, block
    message, _, data = block.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in message.decode().split("\r\n")[1:])
    if "Transfer-Encoding" in headers:
        chunks, rest = [], data
        while not rest.startswith(b"0\r\n"):
            size, _, rest = rest.partition(b"\r\n")
            chunks.append(rest[: int(size, 16)])
            rest = rest[int(size, 16) + 2 :]
        data = b"".join(chunks)
    if "Content-Encoding" in headers:
        data = gzip.decompress(data)
    return headers["Content-Type"], data


def page(folder: Path, capture: Capture) -> str:
    media_type, data = body(folder, capture)
    declared = re.search(r"charset=([\w-]+)", media_type) or re.search(
        r'charset="([\w-]+)"', data[:1024].decode("ascii", "replace")
    )
    return data.decode(declared[1] if declared else "utf-8-sig")


def pairs(folder: Path, dropped: Counter[str]) -> Iterator[Pair]:
    """Image elements with a caption and a URL; the others are counted."""
    for capture in filter(is_page, captures(folder)):
        tree = LexborHTMLParser(page(folder, capture))
        language = tree.css_first("html").attributes["lang"] or ""
        base = tree.css_first("base")
        base_url = ada_url.URL(base.attributes["href"], base=capture.url).href if base else capture.url
        for element in tree.tags("img"):
            caption = " ".join((element.attributes.get("alt") or "").split())
            url = resolved(element.attributes, base_url)
            if "alt" not in element.attributes:
                dropped["alt_missing"] += 1
            elif not caption:
                dropped["alt_empty"] += 1
            elif url is None:
                dropped["url_invalid"] += 1
            else:
                yield Pair(url, caption, capture.url, language)


def resolved(attributes: dict[str, str | None], base_url: str) -> str | None:
    values = ((attributes.get(name) or "").strip() for name in _ATTRIBUTES)
    reference = next((value for value in values if value and not value.startswith("data:")), None)
    if reference is None:
        return None
    reference = re.sub(r" (1x|2x|320w).*", "", reference)
    try:
        url = ada_url.URL(reference, base=base_url)
    except ValueError:
        return None
    url.hash = ""
    return url.href if url.protocol in ("http:", "https:") else None


def ngrams(caption: str) -> tuple[list[str], list[object]]:
    words = _WORDS.findall(caption.lower())
    return words, [*words, *pairwise(words)]


def judge(
    pool: list[Pair], *, vocabulary_size: int, texts_per_image_at_most: int
) -> tuple[list[Pair], Counter[str], int]:
    """The pairs that the text rules keep, the number of each reason for a drop, and the count from which an n-gram is
    in the vocabulary.
    """
    counts = Counter(ngram for pair in pool for ngram in ngrams(pair.caption)[1])
    least = sorted(counts.values(), reverse=True)[vocabulary_size - 1]
    images, texts = defaultdict(set), defaultdict(set)
    for pair in pool:
        images[pair.caption.lower()].add(pair.url)
        texts[pair.url].add(pair.caption.lower())
    kept, dropped, seen = [], Counter[str](), set()
    for pair in sorted(pool, key=lambda pair: pair.page_url):
        words, grams = ngrams(pair.caption)
        rules = {
            "text_too_short": len(words) < 3,
            "text_too_long": len(words) > 20,
            "text_on_too_many_images": len(images[pair.caption.lower()]) > 10,
            "text_has_rare_ngram": any(counts[ngram] < least for ngram in grams),
            "image_has_too_many_texts": len(texts[pair.url]) > texts_per_image_at_most,
            "pair_repeated": (pair.url, pair.caption) in seen,
        }
        reason = next((name for name, holds in rules.items() if holds), None)
        if reason is None:
            seen.add((pair.url, pair.caption))
            kept.append(pair)
        else:
            dropped[reason] += 1
    return kept, dropped, least


def judge_image(data: bytes | None) -> str:
    """The reason for which an image is dropped, or "kept"."""
    if data is None:
        return "not_in_archive"
    try:
        image = Image.open(io.BytesIO(data))
    except OSError:
        return "image_undecodable"
    if image.width * image.height > 178_956_970:
        return "image_too_many_pixels"
    try:
        image.load()
    except (OSError, SyntaxError, EOFError):
        return "image_damaged"
    if min(image.size) <= 200:
        return "image_too_small"
    return "image_too_elongated" if max(image.size) >= 3 * min(image.size) else "kept"


def broken_members(path: Path) -> list[str]:
    """What is wrong with each gzip member, or the record in it, that a reader cannot use."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        member, record, start = zlib.decompressobj(wbits=31), b"", at
        try:
            while at < len(data) and not member.eof:
                record += member.decompress(data[at : at + 4096])
                at += 4096
        except zlib.error:
            found.append("damaged")
            at = data.index(b"\x1f\x8b\x08", start + 1)
            continue
        at = min(at, len(data)) - len(member.unused_data)
        if not member.eof:
            found.append("cut")
        elif b"WARC-Target-URI" not in record and b"WARC-Type: warcinfo" not in record:
            found.append("nameless")
    return found

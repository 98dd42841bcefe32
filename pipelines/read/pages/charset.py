"""The character encoding of a page, found as browsers find it, and the page as UTF-8.

In this order: byte order mark, HTTP header, <meta> in the first 1,024 bytes, valid UTF-8, a guess. Labels are those of
the WHATWG Encoding standard, for which resiliparse knows Python's codecs. One that it does not know is as if absent.

URLs are UTF-8 but for their queries, which are in the page's encoding.
"""

import codecs
from functools import lru_cache
from urllib.parse import quote_from_bytes

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

_BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_META_BYTES = 1_024
_GUESS_BYTES = 1 << 20
# what browsers read and write under these names
_READ_AS = {"gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "iso8859-11": "cp874"}
_WRITTEN_AS = {"shift_jis": "cp932", "euc_kr": "cp949", "big5": "cp950", "iso8859-11": "cp874"}
_AS_IS = "".join(map(chr, range(0x21, 0x7F))).translate(dict.fromkeys(b"\"#'<>"))  # in a query
_LINE_BREAKS = dict.fromkeys(b"\t\n\r")
_REFERENCES = "altalign.references"


def _referred(error: UnicodeError) -> tuple[str, int]:
    """Character references, percent-encoded, for what an encoding cannot write."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(f"%26%23{ord(character)}%3B" for character in error.object[error.start : error.end]), error.end


codecs.register_error(_REFERENCES, _referred)


def to_utf8(body: bytes, http_label: str | None) -> tuple[bytes, str | None]:
    """A page as valid UTF-8 without a byte order mark, and the codec of its URLs' queries (None: UTF-8).

    Bytes that are invalid in its encoding become U+FFFD.

    Args:
        body: the page's bytes.
        http_label: charset of the HTTP header's content type, if it has one.
    """
    mark = next(filter(body.startswith, _BOMS), b"")
    codec = _BOMS.get(mark) or _by_label(http_label or "") or _declared(body[:_META_BYTES])
    body = body[len(mark) :]
    if codec in ("utf-8", None):
        try:
            body.decode()
        except UnicodeDecodeError:
            codec = codec or detect_encoding(body[:_GUESS_BYTES]) or "cp1252"
        else:
            return body, None
    of_queries = None if codec.startswith("utf-") else codec
    if body.isascii() and not codec.startswith(("utf-16", "iso2022")):
        return body, of_queries
    if codec != "big5":
        return body.decode(_READ_AS.get(codec, codec), "replace").encode("utf-8", "replace"), of_queries
    try:  # cp950 has the signs that browsers show, and none of Hong Kong's characters
        return body.decode("cp950").encode(), of_queries
    except UnicodeDecodeError:
        return body.decode("big5hkscs", "replace").encode(), of_queries


def with_query_in(codec: str | None, url: str) -> str:
    """A URL of a page, its query percent-encoded in this codec as browsers do, without a fragment.

    What the encoding cannot write is written as a character reference.
    """
    if codec is None or url.isascii():
        return url
    path, mark, query = url.partition("#")[0].partition("?")
    query = query.translate(_LINE_BREAKS).rstrip(" ")
    return path + mark + quote_from_bytes(query.encode(_WRITTEN_AS.get(codec, codec), _REFERENCES), _AS_IS)


@lru_cache(maxsize=256)
def _by_label(label: str) -> str | None:
    return map_encoding_to_html5(label.strip("\"' \t"), fallback_utf8=False)


def _declared(head: bytes) -> str | None:
    """The codec that a <meta> declares.

    Where nothing is declared, resiliparse guesses: the mark in front makes that UTF-16, as which nothing that begins
    with ASCII can be declared.
    """
    codec = detect_encoding(codecs.BOM_UTF16_LE + head, from_html_meta=True)
    return None if codec is None or codec.startswith("utf-16") else codec

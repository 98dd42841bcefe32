"""The character encoding of a page, found as browsers find it, and the page as UTF-8.

In this order: byte order mark, HTTP header, <meta> in the first 1,024 bytes, valid UTF-8, a guess. Labels are those of
the WHATWG Encoding standard; one that means nothing there, or that it replaces altogether (HZ, ISO-2022-KR, …: never
decoded in browsers), is as if absent.

URLs are UTF-8 but for their queries, which are in the page's encoding.
"""

import codecs
import re
from functools import cache, lru_cache
from urllib.parse import quote_from_bytes

import webencodings
from resiliparse.parse.encoding import detect_encoding

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))
_META_BYTES = 1_024
_GUESS_BYTES = 1 << 20
_TOKEN = re.compile(
    rb"""<!--.*?(?:-->|\Z)                                                  # a comment
      | <(?P<name>/?[a-zA-Z][^\s/>]*)(?P<attributes>(?:"[^"]*"|'[^']*'|[^'">])*)> # a tag
      | <[!/?][^>]*>""",
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(rb"""([^\s=/"'>][^\s=/>]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>][^\s>]*)))?""")
_AS_IS = "".join(map(chr, range(0x21, 0x7F))).translate(dict.fromkeys(b"\"#'<>"))  # in a query
_LINE_BREAKS = dict.fromkeys(b"\t\n\r")
_SIGNS, _EURO, _TWICE = range(0xA1, 0xA4), b"\xa3\xe1", "═╞╡╪十卅"  # of Big5: first bytes; written by the later pair
_NOT_WRITTEN = {"big5": range(0x81, 0xA1), "shift_jis": range(0xF0, 0xFA)}  # first bytes: Hong Kong's, private use
_CONTENT_CHARSET = re.compile(rb"""charset\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;"']+))""", re.IGNORECASE)


def to_utf8(body: bytes, http_label: str | None) -> tuple[bytes, webencodings.Encoding | None]:
    """A page as valid UTF-8 without a byte order mark, and the encoding of its URLs' queries (None: UTF-8).

    Bytes that are invalid in its encoding become U+FFFD.

    Args:
        body: the page's bytes.
        http_label: charset of the HTTP header's content type, if it has one.
    """
    encoding, body = _encoding(body, http_label)
    of_queries = None if encoding is None or encoding.name.startswith("utf-") else encoding
    if encoding is None or _is_plain(body, encoding):
        return body, of_queries
    # GBK is read as what it grew into
    codec = codecs.lookup("gb18030") if encoding.name == "gbk" else encoding.codec_info
    text, _ = codec.decode(body, _OR_EURO if encoding.name == "big5" else "replace")
    if encoding.name == "big5":
        text = text.translate(_misread())
    return text.encode("utf-8", "replace"), of_queries


def with_query_in(encoding: webencodings.Encoding, url: str) -> str:
    """A URL of a page in this encoding, its query percent-encoded as browsers do, without a fragment.

    What the encoding cannot write is written as a character reference.
    """
    if url.isascii():
        return url
    path, mark, query = url.partition("#")[0].partition("?")
    query = query.translate(_LINE_BREAKS).rstrip(" ")
    if encoding.name == "iso-2022-jp":  # which has states
        written = encoding.codec_info.encode(query, _REFERENCES)[0]
    else:
        written = b"".join(_written(character, encoding) for character in query)
    return path + mark + quote_from_bytes(written, _AS_IS)


def _written(character: str, encoding: webencodings.Encoding) -> bytes:
    """A character's bytes. The standard's encoders know less than Python's, and take other bytes in Shift_JIS."""
    if encoding.name == "gbk":
        written = b"\x80" if character == "€" else character.encode("gb18030", _REFERENCES)
    else:
        written = encoding.codec_info.encode(character, _REFERENCES)[0]
    if encoding.name == "big5":
        written = _signs().get(character, _referred(character) if written[0] in _SIGNS else written)
    if encoding.name == "shift_jis" and written[0] in (0xED, 0xEE):  # NEC's copies of IBM's characters
        return _ibm_characters()[character]
    is_unknown = written[0] in _NOT_WRITTEN.get(encoding.name, ()) or (len(written) > 2 and encoding.name != "gb18030")
    return _referred(character) if is_unknown else written


@cache
def _ibm_characters() -> dict[str, bytes]:
    pairs = [bytes([lead, trail]) for lead in (0xFA, 0xFB, 0xFC) for trail in range(0x40, 0xFD)]
    return {pair.decode("cp932", "replace"): pair for pair in pairs}


@cache
def _signs() -> dict[str, bytes]:
    """Signs of Big5 as the standard has them, which is as cp950 does; big5hkscs has some otherwise, and no euro."""
    trails = (*range(0x40, 0x7F), *range(0xA1, 0xFF))
    pairs = [bytes([lead, trail]) for lead in reversed(_SIGNS) for trail in reversed(trails)]
    read = ((pair.decode("cp950", "ignore"), pair) for pair in pairs)
    return {sign: pair for sign, pair in read if len(sign) == 1 and sign not in _TWICE}


@cache
def _misread() -> dict[int, str]:
    """Signs by what big5hkscs reads instead of them, as far as that is no other sign."""
    read = ((pair.decode("big5hkscs", "ignore"), sign) for sign, pair in _signs().items())
    return {ord(other): sign for other, sign in read if other and other not in _signs()}


def _read_euro(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    pair = error.object[error.start : error.start + 2]
    is_one = 0x80 < pair[0] < 0xFF and pair[1:] > b"\x7f"  # Python takes the second byte for the first of another pair
    return "€" if pair == _EURO else "\ufffd", error.start + 1 + is_one


def _referred(text: str) -> bytes:
    return "".join(f"%26%23{ord(character)}%3B" for character in text).encode()


def _refer(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return _referred(error.object[error.start : error.end]).decode(), error.end


_REFERENCES = "altalign.references"
codecs.register_error(_REFERENCES, _refer)
_OR_EURO = "altalign.or_euro"
codecs.register_error(_OR_EURO, _read_euro)


def _encoding(body: bytes, http_label: str | None) -> tuple[webencodings.Encoding | None, bytes]:
    """The encoding (None: UTF-8, and valid), and the body without a byte order mark."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return _lookup(name), body[len(mark) :]
    declared = _lookup(http_label) or _from_meta(body[:_META_BYTES])
    if declared is not None:
        return declared, body
    if _is_utf8(body):
        return None, body
    return _lookup(detect_encoding(body[:_GUESS_BYTES])) or webencodings.lookup("windows-1252"), body


def _is_plain(body: bytes, encoding: webencodings.Encoding) -> bool:
    """Whether a body needs no decoding because it is valid UTF-8 as it is."""
    is_plain = body.isascii() and not encoding.name.startswith(("utf-16", "iso-2022"))
    return is_plain or (encoding.name == "utf-8" and _is_utf8(body))


@lru_cache(maxsize=256)
def _lookup(label: str | None) -> webencodings.Encoding | None:
    """An encoding by its WHATWG label."""
    encoding = webencodings.lookup((label or "").strip("\"' \t"))
    return None if encoding is None or encoding.name == "replacement" else encoding


def _from_meta(head: bytes) -> webencodings.Encoding | None:
    """The encoding that a <meta> declares.

    UTF-16 means UTF-8 there, because the declaration itself was readable, and x-user-defined means windows-1252.
    """
    for token in _TOKEN.finditer(head):
        if (token["name"] or b"").lower() != b"meta":
            continue
        attributes: dict[bytes, bytes] = {}
        for attribute in _ATTRIBUTE.finditer(token["attributes"]):
            attributes.setdefault(attribute[1].lower(), attribute[2] or attribute[3] or attribute[4] or b"")
        label = attributes.get(b"charset")
        if label is None and attributes.get(b"http-equiv", b"").lower() == b"content-type":
            content = _CONTENT_CHARSET.search(attributes.get(b"content", b""))
            label = (content[1] or content[2] or content[3]) if content else None
        encoding = _lookup((label or b"").decode("latin-1"))
        if encoding is not None:
            other = "utf-8" if encoding.name.startswith("utf-16") else encoding.name
            return webencodings.lookup("windows-1252" if other == "x-user-defined" else other)
    return None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True

"""The character encoding of a page, found as browsers find it, and the page as UTF-8.

In this order: byte order mark, HTTP header, <meta> in the first 1,024 bytes, valid UTF-8, a guess. Labels are those of
the WHATWG Encoding standard; one that means nothing there, or that it replaces altogether (HZ, ISO-2022-KR, …: never
decoded in browsers), is as if absent.
"""

import codecs
import re
from functools import lru_cache

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
_CONTENT_CHARSET = re.compile(rb"""charset\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s;"']+))""", re.IGNORECASE)


def to_utf8(body: bytes, http_label: str | None) -> bytes:
    """A page as valid UTF-8 without a byte order mark; bytes that are invalid in its encoding become U+FFFD.

    Args:
        body: the page's bytes.
        http_label: charset of the HTTP header's content type, if it has one.
    """
    encoding, body = _encoding(body, http_label)
    if encoding is None:  # valid UTF-8
        return body
    text, _ = encoding.codec_info.decode(body, "replace")
    return text.encode("utf-8", "replace")


def _encoding(body: bytes, http_label: str | None) -> tuple[webencodings.Encoding | None, bytes]:
    """The encoding (None: UTF-8, and valid), and the body without a byte order mark."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return _unless_valid(_lookup(name), body[len(mark) :])
    declared = _lookup(http_label) or _from_meta(body[:_META_BYTES])
    if declared is not None:
        return _unless_valid(declared, body)
    if _is_utf8(body):
        return None, body
    return _lookup(detect_encoding(body[:_GUESS_BYTES])) or webencodings.lookup("windows-1252"), body


def _unless_valid(encoding: webencodings.Encoding | None, body: bytes) -> tuple[webencodings.Encoding | None, bytes]:
    """Returns what `_encoding` does: None for a body that needs no decoding because it is valid UTF-8 as it is."""
    if encoding is None:
        return None, body
    is_plain = body.isascii() and not encoding.name.startswith(("utf-16", "iso-2022"))
    return (None if is_plain or (encoding.name == "utf-8" and _is_utf8(body)) else encoding), body


@lru_cache(maxsize=256)
def _lookup(label: str | None) -> webencodings.Encoding | None:
    """An encoding by its WHATWG label; x-user-defined is windows-1252, as a page means it."""
    encoding = webencodings.lookup((label or "").strip("\"' \t"))
    if encoding is None:
        return None
    if encoding.name == "x-user-defined":
        return webencodings.lookup("windows-1252")
    return None if encoding.name == "replacement" else encoding


def _from_meta(head: bytes) -> webencodings.Encoding | None:
    """The encoding that a <meta> declares; UTF-16 means UTF-8 there, because the declaration itself was readable."""
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
            return webencodings.lookup("utf-8") if encoding.name.startswith("utf-16") else encoding
    return None


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True

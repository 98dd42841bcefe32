"""Pages that are served as XHTML, by the rules of XML: what ends at once swallows nothing."""

import re
from html.entities import name2codepoint
from xml.parsers import expat

BYTES = 4 << 20  # a larger page is read as HTML: the parser takes up to 100 bytes for each
_NAMESPACE = "http://www.w3.org/1999/xhtml "
_ENTITIES = "".join(f'<!ENTITY {name} "&#38;#{code};">' for name, code in name2codepoint.items()).encode()
_DECLARED = re.compile(rb"""<\?xml\s[^>]*?\sencoding\s*=\s*["'](?!utf-?16)([\w.:-]+)""", re.IGNORECASE)
_ENDS_AT_ONCE = re.compile(
    rb"<(script|style|title|textarea|iframe|noframes|noembed|noscript|xmp|template)"
    rb"""(\s(?:"[^"]*"|'[^']*'|[^"'<>])*)?/>""",
    re.IGNORECASE,
)

Attributes = dict[str, str]


class _NoPageError(Exception):
    """The root is no element of XHTML."""


def charset(body: bytes) -> str | None:
    """The label in the XML declaration."""
    declared = _DECLARED.match(body)
    return declared[1].decode() if declared else None


def images(page: bytes) -> tuple[list[Attributes], str | None] | None:
    """Attributes of the <img> elements of a page in UTF-8, and the `href` of its first <base> that has one.

    None where it is not well-formed, no XHTML, too large, or declares entities of its own, which may be without end.
    """
    if len(page) > BYTES or b"<!ENTITY" in page:
        return None
    found, hrefs, open_templates, is_root = list[Attributes](), list[str](), 0, True
    parser = expat.ParserCreate("utf-8", " ")

    def start(name: str, attributes: Attributes) -> None:
        nonlocal open_templates, is_root
        if is_root and name != _NAMESPACE + "html":
            raise _NoPageError
        is_root = False
        open_templates += name == _NAMESPACE + "template"
        if open_templates:
            return
        if name == _NAMESPACE + "img":
            found.append(attributes)
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
    return found, next(iter(hrefs), None)


def as_html(page: bytes) -> bytes:
    """A page that is not well-formed, as an HTML parser reads it: it knows no other elements that end at once."""
    return _ENDS_AT_ONCE.sub(rb"<\1\2></\1>", page)

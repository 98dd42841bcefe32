"""The names of elements and attributes that `html_kernels` knows, and their properties."""

from collections.abc import Iterable
from functools import cache

import numpy as np

from altalign.pipelines.read.pages import html_kernels as kernel
from altalign.pipelines.read.pages.html_kernels import COLUMNS

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
    for bit, of in _CLASSES.items():
        for name in of.split():
            classes[name] = classes.get(name, 0) | bit
    for name, column in [*zip(COLUMNS, range(len(COLUMNS)), strict=True), *_OTHER_COLUMNS.items()]:
        classes[name] = classes.get(name, 0) | (column + 1) << kernel.COLUMN
    for number, name in enumerate(_COUNTED.split(), 1):
        classes[name] = classes.get(name, 0) | number << kernel.NUMBER
    slots = np.zeros((2, kernel.SLOTS), np.uint64)
    for name, of in classes.items():
        slot = (hashed := _hashed(name.encode())) % kernel.SLOTS
        while slots[0, slot]:
            slot = (slot + 1) % kernel.SLOTS
        slots[:, slot] = hashed, of
    return slots


def _hashed(name: Iterable[int]) -> int:
    value = 0
    for byte in name:
        value = (value * kernel.MULTIPLIER + byte + 1) % (1 << 64)
    return value

"""`iptc`: the property Data Mining of IPTC Photo Metadata 2025.1, `plus:DataMining` of PLUS LDF, in XMP."""

import re
from itertools import islice

from altalign.filters.reservations.said import AT_MOST

_PROPERTY = re.compile(
    rb"""DataMining(?:\s*=\s*["']|\s*>\s*|\s+rdf:resource\s*=\s*["'])([^"'<>]{0,100}DMI-[\w-]{1,60})"""
)
_OPPOSING = {  # what stands behind DMI-PROHIBITED-; all else, and nothing, opposes everything
    "AIMLTRAINING": ("train", "train-generative", "train-other"),
    "GENAIMLTRAINING": ("train", "train-generative"),
    "EXCEPTSEARCHENGINEINDEXING": ("train", "train-generative", "train-other"),
}


def of_image(data: bytes) -> list[str]:
    """The values in the XMP packets of an image file. One that is compressed (in PNG) is not read."""
    if b"DataMining" not in data:
        return []
    found = islice(_PROPERTY.finditer(data), AT_MOST)
    return [match[1].decode("ascii", "replace").strip() for match in found]


def opposes(value: str, purpose: str) -> bool:
    """Whether a value of the vocabulary opposes a purpose."""
    _, prohibited, what = value.upper().partition("DMI-PROHIBITED")
    return bool(prohibited) and purpose in _OPPOSING.get(what.removeprefix("-"), (purpose,))

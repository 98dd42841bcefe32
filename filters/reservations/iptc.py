"""`iptc`: the property Data Mining of IPTC Photo Metadata 2025.1, `plus:DataMining` of PLUS LDF, in XMP."""

import re
from collections.abc import Sequence
from itertools import islice

from altalign.data.preferences import LOOKED_AT, Said

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
    found = islice(_PROPERTY.finditer(data), LOOKED_AT)
    return [match[1].decode("ascii", "replace").strip() for match in found]


def oppose(said: Sequence[Said], purpose: str, _token: str) -> bool:
    """Whether values of the vocabulary oppose a purpose."""
    parts = (each.value.upper().partition("DMI-PROHIBITED") for each in said)
    return any(no and purpose in _OPPOSING.get(what.removeprefix("-"), (purpose,)) for _, no, what in parts)

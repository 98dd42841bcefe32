"""`c2pa`: the training and data mining assertion of CAWG 1.1 and of C2PA 1.4, in a manifest inside the image.

Signatures are not verified, for a no counts whoever wrote it, and manifests that are elsewhere are not fetched.
"""

import json
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from altalign.data.preferences import LOOKED_AT, Said
from altalign.filters.reservations import containers

_LABEL = re.compile(rb"((?:cawg|c2pa)\.training-mining(?:__\d+)?)\x00")
_BEFORE_LABEL = 25  # bytes of a description box: its length and name, an identifier, toggles
UNREADABLE = "unreadable"
_TRAINING = {  # an entry of mining holds where that of the purpose is missing
    "train": ("ai_training", "ai_generative_training", "data_mining"),
    "train-generative": ("ai_generative_training",),
    "train-other": ("ai_training",),
}


def of_image(data: bytes) -> list[str]:
    """The assertions in an image file: the use of each entry, `cawg.ai_training=notAllowed`, or `unreadable`.

    `data` is the part of the file that has its marks.
    """
    if b"jumb" not in data:
        return []
    manifests = containers.boxes_of_jpeg(data) if containers.is_jpeg(data) else data
    return [_uses(manifests, match) for match in islice(_LABEL.finditer(manifests), LOOKED_AT)]


def oppose(said: Sequence[Said], purpose: str, _token: str) -> bool:
    """Whether assertions oppose a purpose. `constrained` is no permission without more information (CAWG)."""
    return not all(_allows(each.value, _TRAINING.get(purpose, ())) for each in said)


def _allows(value: str, uses: Sequence[str]) -> bool:
    if value.endswith(UNREADABLE):
        return not uses
    entries = (entry.partition("=") for entry in value.split(", "))
    allowed = {name.rpartition(".")[2]: use == "allowed" for name, _, use in entries}
    return all(allowed.get(name, allowed.get("data_mining", True)) for name in uses)


def _uses(manifests: bytes, label: re.Match[bytes]) -> str:
    """The entries of an assertion, in the box that follows the description with its label."""
    import cbor2

    name, begin = label[1].decode(), label.start() - _BEFORE_LABEL
    try:
        begin += int.from_bytes(manifests[begin : begin + 4])
        length, kind = int.from_bytes(manifests[begin : begin + 4]), manifests[begin + 4 : begin + 8]
        content = manifests[begin + 8 : begin + length]
        assertion: Any = json.loads(content) if kind == b"json" else cbor2.loads(content)
        return ", ".join(f"{entry}={each['use']}" for entry, each in assertion["entries"].items()) or name
    except (cbor2.CBORError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return f"{name}: {UNREADABLE}"

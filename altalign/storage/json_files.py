"""JSON files of runs: plain ones, and ones with a seal, the SHA-256 of all bytes before the line that has it."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from altalign.errors import UnreadableError

_SEAL = re.compile(rb',\n  "seal": "([0-9a-f]{64})"\n}\n\Z')


def plain(value: object) -> bytes:
    """The bytes of a value: indented, in the order given."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def sealed(value: Mapping[str, object]) -> bytes:
    """The bytes of an object that is not empty, with its seal."""
    body = plain(value)[: -len(b"\n}\n")]
    return body + b',\n  "seal": "%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()


def read_plain(path: str, data: bytes) -> dict[str, Any]:
    """The object of the bytes of a file.

    Raises:
        UnreadableError: it is no JSON, or no object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableError(f"{path}: not a JSON object but {value!r:.40}")
    return value


def read_sealed(path: str, data: bytes) -> dict[str, Any]:
    """The object that `sealed` made these bytes of.

    Raises:
        UnreadableError: a byte of them is another.
    """
    seal = _SEAL.search(data)
    if seal is None or hashlib.sha256(memoryview(data)[: seal.start()]).hexdigest() != seal[1].decode():
        raise UnreadableError(f"{path}: not as it was written: its seal is of other bytes")
    value = read_plain(path, data)
    del value["seal"]
    return value

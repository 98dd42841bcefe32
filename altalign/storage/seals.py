"""JSON files that carry a seal: the SHA-256 of all bytes before the line that has it."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

_SEAL = re.compile(rb',\n  "seal": "([0-9a-f]{64})"\n}\n\Z')


def sealed(value: Mapping[str, object]) -> bytes:
    """The bytes of an object that is not empty: indented, in the order given, with its seal."""
    body = json.dumps(value, indent=2, ensure_ascii=False).encode()[:-2]  # without the last brace on its line
    return body + b',\n  "seal": "%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()


def opened(data: bytes) -> dict[str, Any]:
    """What `sealed` made bytes of.

    Raises:
        ValueError: a byte of them is another.
    """
    seal = _SEAL.search(data)
    if seal is None or hashlib.sha256(memoryview(data)[: seal.start()]).hexdigest() != seal[1].decode():
        raise ValueError("not the bytes that were sealed")
    value: dict[str, object] = json.loads(data)
    del value["seal"]
    return value

"""The column `extra`: kept columns of the input as one JSON object, in one spelling."""

import json
import math

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)


def encode(value: object) -> str:
    """A value as JSON on one line: numbers that JSON lacks (NaN, infinities) as null, other types as their text."""
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(_finite(value))


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value

"""The contract: schemas, reasons, counts, keys, shards, settings, errors and command line. It imports no other room.

For Python programs: `open` and `curate` a run, `audit` it. They are imported when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from altalign.python import audit, curate, open  # noqa: A004 - as in gzip and tarfile

__version__ = "0.1.0"
__all__ = ["__version__", "audit", "curate", "open"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("curate", "open"):
        return getattr(import_module("altalign.python"), name)
    if name == "audit":  # the room itself, which can be called
        return import_module("altalign.audit")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Reads the block lists of images."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from altalign import storage
from altalign.errors import UsageError, bring
from altalign.filters.blocked import BlockList


def load_block_lists(paths: Sequence[str]) -> BlockList:
    """Read `[image] blocked_hashes`.

    Raises:
        UsageError: a file cannot be read, a line is no hash, or PDQ hashes are listed and the package `pdqhash` is
            missing.
    """
    block_list = BlockList.parse((path, _text(path)) for path in paths)
    if len(block_list.pdq) and importlib.util.find_spec("pdqhash") is None:
        raise UsageError(
            f"[image] blocked_hashes lists {len(block_list.pdq)} PDQ hashes and the package pdqhash is missing; "
            f"{bring('pdq')}"
        )
    return block_list


def _text(path: str) -> str:
    try:
        return Path(storage.mappable(path)).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"[image] blocked_hashes: {path}: cannot be read ({error.strerror}); give paths relative to the working "
            "directory"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"[image] blocked_hashes: {path}: not text (byte {error.start})") from None

"""Reads the block lists of images and of URLs."""

import importlib.util
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from altalign import storage
from altalign.errors import UsageError, bring
from altalign.filters.blocked import BlockList
from altalign.settings.curate import FetchSettings


def load_block_lists(paths: Sequence[str]) -> BlockList:
    """Read `[image] blocked_hashes`.

    Raises:
        UsageError: a file cannot be read, a line is no hash, or PDQ hashes are listed and the package `pdqhash` is
            missing.
    """
    block_list = BlockList.parse((path, _text(path, "[image] blocked_hashes")) for path in paths)
    if len(block_list.pdq) and importlib.util.find_spec("pdqhash") is None:
        raise UsageError(
            f"[image] blocked_hashes lists {len(block_list.pdq)} PDQ hashes and the package pdqhash is missing; "
            f"{bring('pdq')}"
        )
    return block_list


def of_urls(settings: FetchSettings) -> BlockList:
    """Reads `[fetch] blocked_urls`, once a process.

    Raises:
        UsageError: a file cannot be read, or a line is no hash.
    """
    changed = tuple(storage.stamp(path) if storage.exists(path) else None for path in settings.blocked_urls)
    return _of_urls(tuple(settings.blocked_urls), changed)


@lru_cache(maxsize=1)
def _of_urls(paths: tuple[str, ...], _changed: tuple[storage.Stamp | None, ...]) -> BlockList:
    return BlockList.parse(((path, _text(path, "[fetch] blocked_urls")) for path in paths), of_urls=True)


def _text(path: str, setting: str) -> str:
    try:
        return Path(storage.mappable(path)).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{setting}: {path}: cannot be read ({error.strerror}); give paths relative to the working directory"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{setting}: {path}: not text (byte {error.start})") from None

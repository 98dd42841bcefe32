"""Generations of shards: what a curation writes, then what each `altalign add` writes beside it.

    RUN/shards/00000.tar         of the curation
    RUN/shards/g0002-00000.tar   of the first `altalign add`, g0003-… of the second

All lie in one folder, so that globs find them. Inside a generation samples are in the order of (image_id, key). The
manifest says how many generations a run has had; where it says nothing, all shards are of one.
"""

import re
from collections.abc import Mapping
from typing import Any

ENTRY = "generations"  # of the manifest
_NAME = re.compile(r"g(\d{4,})-\d+")


def number_of(shard: str) -> int:
    """The generation of a shard, by its name, with or without an ending; the first is 1."""
    match = _NAME.match(shard)
    return int(match[1]) if match else 1


def named(generation: int, number: int) -> str:
    """The name of a shard, without an ending."""
    return f"{number:05d}" if generation == 1 else f"g{generation:04d}-{number:05d}"


def in_manifest(manifest: Mapping[str, Any]) -> int:
    """How many generations a run has had; 1 of one that `altalign merge` has written."""
    return int(manifest.get(ENTRY, 1))

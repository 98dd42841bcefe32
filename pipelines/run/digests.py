"""Digests of settings and of the files that settings name."""

import hashlib
import json
from pathlib import Path

from altalign import storage
from altalign.settings.curate import CurateConfig


def digest(value: object) -> str:
    """SHA-256 of a value as JSON, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def content(path: str) -> str:
    """SHA-256 of a file, in hex; "missing" where there is none."""
    return hashlib.sha256(storage.read_bytes(path)).hexdigest() if storage.exists(path) else "missing"


def files_named(config: CurateConfig) -> list[str]:
    """The files that measuring images uses: a block list, the NSFW model and its TOML, and those of an embedder."""
    model = config.image.nsfw.model
    return [
        *config.image.blocked_hashes,
        *([model, str(Path(model).with_suffix(".toml"))] if model else []),
        *config.decontaminate.embedder_files,
    ]

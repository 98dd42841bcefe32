"""The end of a run: the list of all its files, the data-set card, and the manifest last."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from altalign import storage
from altalign.data import generations, listing
from altalign.data.schema import RULES_VERSION, SCHEMA_VERSION
from altalign.filters import where
from altalign.pipelines import card as dataset_card
from altalign.pipelines.card import CardFacts
from altalign.pipelines.run.tables.written import ShardFacts
from altalign.pipelines.run.units import Run
from altalign.storage import Written

Shards = Sequence[tuple[str, ShardFacts]]


def write(
    run: Run,
    shards: Shards,
    files: Mapping[str, Written],
    facts: CardFacts,
    block: storage.Block,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write `files.jsonl`, the card, and `manifest.json` last.

    Args:
        run: the run.
        shards: name and facts of each shard, in order.
        files: all files that the run's input and settings decide, by their paths in the run.
        facts: of the card; the digest of the list is filled in here.
        block: what was written since the last mark: the disk keeps it before there is a manifest.
        more: further entries of the manifest.
    """
    list_of_files = listing.to_bytes(files)
    number = hashlib.sha256(list_of_files).hexdigest()
    with storage.noted() as of_card:
        storage.write_bytes(run.path(listing.FILE), list_of_files)
        conditions = where.of_reasons((more or {}).get("lineage"))
        is_grown = generations.ENTRY in (more or {})
        card = dataset_card.write(run.folder, facts._replace(digest=number, is_grown=is_grown, conditions=conditions))
    if not run.config.run.durable:  # once, at the end: nobody looks again at what a manifest vouches for
        paths = [run.path(name) for name in (listing.SETTINGS, *files)]
        # in a removal only what is new is there yet
        storage.sync(storage.Block(dict.fromkeys(filter(storage.exists, paths))))
    storage.sync(block)
    storage.sync(of_card)
    keys = ("rows", "bytes", "sha256", "parquet_sha256")
    manifest = {
        "shards": [{"name": f"{name}.tar", **{key: getattr(of, key) for key in keys}} for name, of in shards],
        **{"pairs": facts.summary["pairs"], "schema_version": SCHEMA_VERSION, "rules_version": RULES_VERSION},
        "settings_sha256": listing.digest(run.path(listing.SETTINGS)).digest,
        "files": {"name": listing.FILE, "bytes": len(list_of_files), "sha256": number},
        "card": card,
        **(more or {}),
    }
    storage.write_sealed(run.path("manifest.json"), manifest, durable=True)


def written(run: Run, block: storage.Block) -> dict[str, Written]:
    """The files that a block has written, by their paths in the run."""
    return {storage.relative(path, run.folder) or path: of or listing.digest(path) for path, of in block.files.items()}

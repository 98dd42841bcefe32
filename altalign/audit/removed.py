"""What was taken out of a run on request, by hashes: `removed.parquet`."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from altalign import storage
from altalign.audit import run_parquet
from altalign.audit.run_folder import RunFolder
from altalign.data.key import image_id
from altalign.data.schema import REMOVED
from altalign.data.stages import REMOVED_FILE
from altalign.filters import one_url


def rows(run: RunFolder, matches: pc.Expression | None = None) -> list[dict[str, Any]]:
    """The rows that match, or all; none where nothing was removed."""
    path = run.path(REMOVED_FILE)
    if not storage.exists(path):
        return []
    found = run_parquet.table(path, REMOVED)
    return (found if matches is None else found.filter(matches)).to_pylist()


def pairs(run: RunFolder) -> tuple[Counter[tuple[str, str, str]], Counter[str]]:
    """How many pairs went: by stage, source and reason; and by shard.

    Of what went before an addition, counts say nothing any more.
    """
    found = rows(run, pc.field("kind") == "pair")
    counted = Counter((row["stage"] or "", row["source"] or "", row["reason"] or "") for row in found if row["stage"])
    return counted, Counter(row["shard"] for row in found if row["shard"])


def told(run: RunFolder, *, key: str | None, url: str | None, source_key: str | None = None) -> Iterator[list[str]]:
    """What happened to a pair or an image that was removed, by its key, image_id, URL or name, line by line."""
    if source_key is not None:  # as it was given, or with its input, as `remove` notes it
        sources = {each.source for each in run.config.input}
        names = [image_id(each) for each in (source_key, *(f"{source}:{source_key}" for source in sorted(sources)))]
    else:
        names = [image_id(one_url.parsed(url)[0]) if url is not None else (key or "").strip().lower()]
    for row in rows(run, pc.field("hash").isin(names)):
        lines = [f"{row['kind']:<9} {row['hash']}", f"removed   {row['time']}"]
        lines += [f"{name:<9} {row[name]}" for name in ("by", "because") if row[name]]
        if row["shard"]:
            lines.append(f"was in    shards/{row['shard']}.tar, row {row['row']}")
        elif row["stage"]:
            lines.append(f"was       dropped by {row['stage']}: {row['reason']}")
        yield lines

"""Compares the verdicts of a run with a peer's, row by row, in duckdb, which spills to disk.

A row is (url, text, verdict), the verdict a bit for every rule that holds, in the peers' numbers; rows are compared as
a multiset. `pair_repeated` has no bit: the peers do not ask it, and of ours only rows without another reason have it.
"""

from pathlib import Path
from typing import Any

import duckdb

BITS = {
    "text_too_short": 1,
    "text_too_long": 2,
    "text_has_rare_ngram": 4,
    "text_on_too_many_images": 8,
    "image_has_too_many_texts": 16,
}
# rules that the peers do not have: no row of the generator should fail them
NOT_ASKED = ("url_invalid", "text_empty")
NO_BIT_OF_THEIRS = 128
MEMORY = "3GB"
EXAMPLES = 5


def compare(run: Path, peer: Path) -> dict[str, Any]:
    """Rows on both sides, how many are on one side alone (with examples), and rows per verdict bit of ours."""
    with duckdb.connect() as db:
        dropped, kept = run / "dropped" / "judge", run / "work" / "judge" / "grouped"
        db.execute(
            f"set memory_limit='{MEMORY}'; set temp_directory='{peer.with_suffix('.compare')}'; set "
            "preserve_insertion_order=false"
        )
        bits = " + ".join(f"{bit} * list_contains(failed, '{reason}')::int" for reason, bit in BITS.items())
        bits += f" + {NO_BIT_OF_THEIRS} * list_has_any(failed, {list(NOT_ASKED)})::int"
        db.execute(
            f"""
            create view ours as
              select image_url url, caption as text, {bits} verdict from read_parquet('{dropped}/*.parquet')
              union all select image_url, caption, 0 from read_parquet('{kept}/*.parquet');
            create view theirs as select url, text, verdict::int verdict from read_parquet('{peer}');
            create temp table uneven as
              select h, sum(n) n from (
                select hash(url, text, verdict) h, 1 n from ours
                union all select hash(url, text, verdict), -1 from theirs)
              group by h having sum(n) <> 0
            """
        )
        per_bit = ", ".join(f"count(*) filter (verdict & {bit} <> 0)" for bit in BITS.values())
        rows, *failed = _row(db, f"select count(*), {per_bit} from ours")
        (theirs,) = _row(db, "select count(*) from theirs")
        (differ,) = _row(db, "select coalesce(sum(abs(n)), 0)::bigint from uneven")
        examples = [
            {"side": side, "url": url, "text": text, "verdict": verdict}
            for side in ("ours", "theirs")
            for url, text, verdict in db.execute(
                f"select * from {side} where hash(url, text, verdict) in (select h from uneven) limit {EXAMPLES}"
            ).fetchall()
            if differ
        ]
    return {
        "rows": rows,
        "rows_of_peer": theirs,
        "differ": differ,
        "failed": dict(zip(BITS, failed, strict=True)),
        "examples": examples,
    }


def _row(db: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    row = db.execute(query).fetchone()
    assert row is not None
    return row

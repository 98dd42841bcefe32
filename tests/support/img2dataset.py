"""Output of img2dataset, as its writer of WebDataset leaves it."""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq


class Asked(NamedTuple):
    """A row of the table that it was given; without an image it failed."""

    url: str
    caption: str | None
    image: bytes | None = None
    status: str = "failed_to_download"


def write(folder: Path, shard: int, rows: Sequence[Asked]) -> None:
    """The files of a shard."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, about = f"{shard:05d}", []
    with tarfile.open(folder / f"{stem}.tar", "w") as tar:
        for number, row in enumerate(rows):
            has_come = row.image is not None
            meta = {
                "caption": row.caption,
                "url": row.url,
                "key": f"{stem}{number:04d}",
                "status": "success" if has_come else row.status,
                "error_message": None if has_come else "HTTP Error 404: Not Found",
                "width": 300 if has_come else None,
                "height": 300 if has_come else None,
                "original_width": 300 if has_come else None,
                "original_height": 300 if has_come else None,
                "exif": "{}" if has_come else None,
                "sha256": "0" * 64 if has_come else None,
            }
            about.append(meta)
            members = {"jpg": row.image, "json": json.dumps(meta).encode(), "txt": (row.caption or "").encode()}
            for ending, data in members.items() if has_come else ():
                member = tarfile.TarInfo(f"{meta['key']}.{ending}")
                member.size = len(data or b"")
                tar.addfile(member, io.BytesIO(data or b""))
    pq.write_table(pa.Table.from_pylist(about), folder / f"{stem}.parquet")
    statistics = {"count": len(rows), "successes": sum(row.image is not None for row in rows)}
    (folder / f"{stem}_stats.json").write_text(json.dumps(statistics), encoding="utf-8")

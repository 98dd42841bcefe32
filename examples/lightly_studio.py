"""Gives what a run kept, and what it dropped as far as it has pictures, to LightlyStudio: docs/guides/browse.md.

Run it in an environment with lightly-studio and pyarrow; `ls.start_gui()` at the end opens the page.
"""

import json
import os
from collections import ChainMap, defaultdict
from pathlib import Path

os.environ["LIGHTLY_STUDIO_ANALYTICS_ENABLED"] = "False"  # it reports usage otherwise
import lightly_studio as ls
import pyarrow.parquet as pq

run, pictures, rows = Path("runs/demo"), Path("pictures").absolute(), defaultdict(dict)


def add(row, picture, reason, ending):
    """Write a picture as a file, and keep what its row says."""
    path = pictures / reason / f"{row['key']}.{ending}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture)
    rows[reason][path.name] = {name: value for name, value in row.items() if isinstance(value, (int, float, str))}


for table in run.glob("shards/*.parquet"):
    tar = memoryview(table.with_suffix(".tar").read_bytes())
    files = [table, *run.glob(f"scores/*/{table.name}")]
    for parts in zip(*(pq.read_table(file).to_pylist() for file in files), strict=True):
        row = ChainMap(*parts)
        add(row, tar[row["tar_offset"] :][: row["tar_bytes"]], "kept", row["format"])
for row in pq.read_table(run / "audit/samples.parquet").to_pylist():
    if row["picture"] and row["reason"] != "kept":
        add(row, row["picture"], row["reason"], "webp")

dataset = ls.ImageDataset.create("demo")
for reason, of in rows.items():
    sizes = ({"file_name": name, "width": row["width"], "height": row["height"]} for name, row in of.items())
    images = [{"id": number, **each} for number, each in enumerate(sizes)]
    captions = [{"image_id": number, "caption": row["caption"]} for number, row in enumerate(of.values())]
    coco = pictures / f"{reason}.json"
    coco.write_text(json.dumps({"images": images, "annotations": captions}))
    dataset.add_samples_from_coco_caption(coco, pictures / reason, split=reason, embed=False)
values = {name: row for of in rows.values() for name, row in of.items()}
dataset.update_metadata([(sample.sample_id, values[sample.file_name]) for sample in dataset])
print({reason: len(of) for reason, of in rows.items()})

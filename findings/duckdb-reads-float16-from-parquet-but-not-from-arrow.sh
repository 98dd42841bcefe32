#!/usr/bin/env bash
# duckdb 2.0.1 with pyarrow 26.0.1: a column of float16, as embeddings are stored, is read from a Parquet file as FLOAT,
# and refused from the Arrow table that was written to this file: "Unsupported Internal Arrow Type e". So a query on
# `ds.dataset(path)` or on a table fails where one on the path works. Expected: the same numbers by both roads.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check duckdb==2.0.1 pyarrow==26.0.1 numpy==2.4.6
cat > run.py <<'P'
import duckdb, numpy as np, pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq

vectors = np.arange(8, dtype=np.float16) / 8
table = pa.table({"one": vectors[:2], "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 4)})
pq.write_table(table, "vectors.parquet")
query = "SELECT one, embedding FROM {}"
rows = duckdb.sql(query.format("'vectors.parquet'")).fetchall()
print("from Parquet:", rows)
assert rows == [(0.0, [0.0, 0.125, 0.25, 0.375]), (0.125, [0.5, 0.625, 0.75, 0.875])]
in_memory, on_disk = table, ds.dataset("vectors.parquet")
for name in ("in_memory", "on_disk"):
    try:
        found = duckdb.sql(query.format(name)).fetchall()
    except duckdb.NotImplementedException as error:
        print(f"from Arrow, {name}:", str(error).splitlines()[0])
        assert "Arrow Type e" in str(error)
    else:
        raise SystemExit(f"Arrow, {name}, is read now: {found}")
P
venv/bin/python run.py

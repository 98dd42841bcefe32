#!/usr/bin/env bash
# embedding-atlas 0.26.0: `--neighbors` has numbers of rows of the file, but rows are numbered after `--sample` or
# `--query` has taken some of them, and the column stays as it is. The page then shows as neighbours other rows, or asks
# for rows that are not there, without a word. Expected: numbers of the rows that are left, or an error.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check click==8.5.1 cryptography==50.0.2 duckdb==1.5.6 \
  fastapi==0.165.0 inquirer==3.4.1 narwhals==2.29.0 pandas==3.1.1 platformdirs==4.14.8 pyarrow==26.0.1 tqdm==4.70.1 \
  uvicorn==0.54.0
# without torch and what else models of embeddings need, for x, y and neighbours are given
venv/bin/pip install --quiet --disable-pip-version-check --no-deps embedding-atlas==0.26.0
cat > run.py <<'P'
import json, os, subprocess, sys
import pyarrow as pa, pyarrow.parquet as pq

# eight points in a ring, the neighbour of each is the next
near = [{"ids": [n, (n + 1) % 8], "distances": [0.0, 0.1]} for n in range(8)]
table = {"name": [f"row {n}" for n in range(8)], "x": [float(n) for n in range(8)], "y": [0.0] * 8, "near": near}
pq.write_table(pa.table(table), "points.parquet")
names = table["name"]

def neighbours(*options):
    """What the page is given: the neighbour of each row by name, as it finds it by __row_index__."""
    words = [sys.executable, "-m", "embedding_atlas.cli", "points.parquet", "--text", "name", "--x", "x", "--y", "y"]
    words += ["--neighbors", "near", "--export-application", "out", *options]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "HOME": os.getcwd()})
    rows = {row["__row_index__"]: row for row in pq.read_table("out/data/dataset.parquet").to_pylist()}
    other = ((row, next(n for n in row["near"]["ids"] if n != number)) for number, row in rows.items())
    return {row["name"]: rows[n]["name"] if n in rows else "none" for row, n in other}

expected = {name: names[(number + 1) % 8] for number, name in enumerate(names)}
assert neighbours() == expected
for options in (("--sample", "4"), ("--query", "SELECT * FROM data WHERE x >= 2")):
    found = neighbours(*options)
    print(*options, found)
    assert any(near != expected[name] and near != "none" for name, near in found.items()), "neighbours are right now"
P
venv/bin/python run.py

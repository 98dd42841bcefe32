#!/usr/bin/env bash
# duckdb 2.0.0: a program that calls `gc.freeze()` before it ends, as many do to end sooner, prints "nanobind: leaked 27
# instances!" and a list of types on standard error, once a connection was used; without it nothing is printed.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check duckdb==2.0.0
cat > used.py <<'P'
import gc
import sys

import duckdb

print(duckdb.connect().execute("select 42").fetchall())
if "freeze" in sys.argv:
    gc.freeze()
P
venv/bin/python used.py 2> plain
venv/bin/python used.py freeze 2> frozen
head -n 1 frozen
test ! -s plain
grep -q '^nanobind: leaked [0-9]* instances!$' frozen

#!/usr/bin/env bash
# Apache Beam 2.77.0 cannot build a pipeline inside IPython or Jupyter, not even one that only squares numbers, unless
# pandas is there and older than 3. Its first transform asks whether it is in IPython and imports Beam's interactive
# package to name the step after the cell; that imports Beam's DataFrame, which needs pandas and `DataFrame.first`,
# removed in pandas 3. `pip install apache-beam` brings no pandas, and nothing of it says so: only the extras
# `interactive` and `dataframe` do. A library whose caller sits in a notebook meets it, and nobody else does.
# Expected: the numbers, as in a script. Exits with 1 if any of the three answers changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
pip() { venv/bin/pip --disable-pip-version-check --quiet "$@"; }
pip install apache-beam==2.77.0 ipython==9.18.1
cat > squares.py <<'P'
import sys

import apache_beam as beam

if sys.argv[1:] == ["in IPython"]:
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.instance()  # what `ipython` and Jupyter's kernel make
try:
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | beam.Create([1, 2, 3]) | beam.Map(lambda n: print(n * n, end=" "))
    print("done")
except (ImportError, AttributeError) as error:
    print(f"{type(error).__name__}: {error}")
P
run() { venv/bin/python -W ignore squares.py "$@" 2>/dev/null | tail -1; }
{
    echo "in a script: $(run)"
    echo "in IPython, no pandas: $(run "in IPython")"
    pip install pandas==3.0.0
    echo "in IPython, pandas 3.0.0: $(run "in IPython")"
    pip install pandas==2.3.3
    echo "in IPython, pandas 2.3.3: $(run "in IPython")"
} | tee seen
diff seen - <<'S'
in a script: 1 4 9 done
in IPython, no pandas: ModuleNotFoundError: No module named 'pandas'
in IPython, pandas 3.0.0: AttributeError: type object 'DataFrame' has no attribute 'first'
in IPython, pandas 2.3.3: 1 4 9 done
S

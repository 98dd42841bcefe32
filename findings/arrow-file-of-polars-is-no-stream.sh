#!/usr/bin/env bash
# polars 2.1.0: write_ipc puts bytes behind the leading magic that are no encapsulated message: they do not begin with
# ff ff ff ff and a length, as those of pyarrow do. The Arrow format lets a file be read as a stream from its eighth byte
# on; pyarrow 26.0.1 reads this one by its footer, and as a stream says "Invalid flatbuffers message.".
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1
cat > run.py <<'P'
import polars, pyarrow as pa

def as_stream(path):
    try:
        return pa.ipc.open_stream(pa.py_buffer(open(path, "rb").read()[8:])).read_all().num_rows
    except (pa.ArrowInvalid, OSError) as error:
        return str(error).splitlines()[0]

table = pa.table({"url": ["https://a.example/1.jpg"], "alt": ["a caption"]})
with pa.ipc.new_file("pyarrow.arrow", table.schema) as file:
    file.write_table(table)
polars.from_arrow(table).write_ipc("polars.arrow")
for path in ("pyarrow.arrow", "polars.arrow"):
    data = open(path, "rb").read()
    print(path, "| by its footer:", pa.ipc.open_file(path).read_all().num_rows, "row | as a stream:", as_stream(path), "|", data[:24].hex(" "))
assert as_stream("pyarrow.arrow") == 1
assert as_stream("polars.arrow") != 1
P
venv/bin/python run.py

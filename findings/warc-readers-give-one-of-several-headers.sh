#!/usr/bin/env bash
# A WARC record keeps every header of an HTTP answer, and a server may send one name several times: RFC 9110, section
# 5.3, has a list so, and `X-Robots-Tag` comes so, each line with an instruction of its own. The mapping that readers of
# WARC offer has one of them, and not the same one: warcio 1.8.1 gives the first; FastWARC 2.0.1 gives the first to
# `headers[name]` and `headers.get(name)`, the last to `dict(headers.items())`, and all, joined by a comma, to
# `headers.asdict()`. Who copies headers into a dict, or asks for one by name, misses a `noai` that the site sent, in
# one order of the lines or in the other. Only the list of pairs has all.
# Expected: one answer, or all values. Exits with 1 if any of these answers changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip --disable-pip-version-check --quiet install warcio==1.8.1 fastwarc==2.0.1
cat > headers.py <<'P'
import io

from fastwarc.warc import ArchiveIterator as FastWarc
from warcio.archiveiterator import ArchiveIterator as Warcio
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

NAME = "X-Robots-Tag"
file = io.BytesIO()
writer = WARCWriter(file, gzip=False)
sent = [("Content-Type", "image/png"), (NAME, "noai"), (NAME, "nofollow")]
answer = StatusAndHeaders("200 OK", sent, protocol="HTTP/1.1")
record = ("http://images.example/a.png", "response")
writer.write_record(writer.create_warc_record(*record, payload=io.BytesIO(b"an image"), http_headers=answer))
file.seek(0)
for record in Warcio(file):
    print("warcio, get_header:", record.http_headers.get_header(NAME))
    print("warcio, pairs:", [value for name, value in record.http_headers.headers if name == NAME])
file.seek(0)
for record in FastWarc(file, parse_http=True):
    headers = record.http_headers
    print("FastWARC, [name]:", headers[NAME])
    print("FastWARC, get:", headers.get(NAME))
    print("FastWARC, dict of items:", dict(headers.items())[NAME])
    print("FastWARC, asdict:", headers.asdict()[NAME])
    print("FastWARC, pairs:", [value for name, value in headers if name == NAME])
P
venv/bin/python headers.py | tee seen
diff seen - <<'S'
warcio, get_header: noai
warcio, pairs: ['noai', 'nofollow']
FastWARC, [name]: noai
FastWARC, get: noai
FastWARC, dict of items: nofollow
FastWARC, asdict: noai,nofollow
FastWARC, pairs: ['noai', 'nofollow']
S

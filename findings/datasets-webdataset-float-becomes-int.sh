#!/usr/bin/env bash
# datasets 5.2.0: the webdataset builder takes types from the first five samples and casts the rest to them without a
# word. A number that is 5 in five samples and 5.5 in the sixth reads as 5; a field that only the sixth sample has is
# gone. Expected: an error, or the value. Streaming and plain loading agree.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check datasets==5.2.0 pillow==12.3.0
cat > run.py <<'P'
import io, json, os, tarfile

os.environ["HF_HUB_OFFLINE"], os.environ["HF_HOME"] = "1", os.path.abspath("home")
from datasets import load_dataset

with tarfile.open("shard.tar", "w") as tar:
    for number in range(7):
        fields = {"score": 5} if number < 5 else {"score": 5.5, "license": "cc-by-4.0"}
        for ending, data in (("txt", b"a caption"), ("json", json.dumps(fields).encode())):
            member = tarfile.TarInfo(f"{number:03d}.{ending}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
for streaming in (True, False):
    rows = load_dataset("webdataset", data_files="shard.tar", split="train", streaming=streaming)
    seen = [row["json"] for row in rows]
    print("streaming" if streaming else "plain", seen)
    assert seen == [{"score": 5}] * 7
P
venv/bin/python run.py 2>&1 | grep -v Generating

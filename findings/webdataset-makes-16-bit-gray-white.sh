#!/usr/bin/env bash
# webdataset 1.0.2: `decode("pil")` and `decode("rgb8")` give a gray PNG of 16 bits with every value above 255 as white,
# without a word: a photograph, whose values go up to 65,535, comes out almost wholly white, where a colour PNG of 16 bits
# keeps its picture. The handler calls Pillow's `convert("RGB")`, which clips gray of 16 bits (12.3.0 and 13.0.0).
# Expected: the upper 8 bits, as of a colour PNG. Exits with 1 if any of these answers changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
for pillow in 12.3.0 13.0.0; do
    python3 -m venv "venv-$pillow"
    "venv-$pillow/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6 "pillow==$pillow"
done
cat > run.py <<'P'
import io, struct, tarfile, zlib

import numpy as np
import PIL
import webdataset as wds


def png(colour_type, rows):
    """A PNG of 16 bits: gray (0) or RGB (2)."""
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", rows.shape[1], rows.shape[0], 16, colour_type, 0, 0, 0)
    lines = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


ramp = np.arange(0, 65536, 8192, dtype=np.uint16)[None]  # eight pixels from black to almost white
samples = {"gray": png(0, ramp), "colour": png(2, np.stack([ramp] * 3, axis=2))}
with tarfile.open("shard.tar", "w") as tar:
    for name, data in samples.items():
        member = tarfile.TarInfo(f"{name}.png")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
for way in ("pil", "rgb8"):
    for sample in wds.WebDataset("shard.tar", shardshuffle=False, empty_check=False).decode(way):
        values = np.asarray(sample["png"])[0, :, 0].tolist()
        print(f"Pillow {PIL.__version__}, {way}, {sample['__key__']}: {values}")
P
for pillow in 12.3.0 13.0.0; do "venv-$pillow/bin/python" -W ignore run.py; done | tee seen
for pillow in 12.3.0 13.0.0; do
    for way in pil rgb8; do
        echo "Pillow $pillow, $way, gray: [0, 255, 255, 255, 255, 255, 255, 255]"
        echo "Pillow $pillow, $way, colour: [0, 32, 64, 96, 128, 160, 192, 224]"
    done
done | diff seen -

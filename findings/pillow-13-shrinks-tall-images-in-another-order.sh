#!/usr/bin/env bash
# Pillow 13.0.0 gives other pixels than 12.3.0 where one `resize` shrinks a tall image both ways: a quarter of the values
# of a 256 x 341 image at 224 x 224, by up to 18 of 255 levels (bicubic, noise). Landscapes stay as they were, bit for
# bit. For the tall ones 13 shrinks rows before columns, 12 columns before rows: each equals two calls of the other
# release in that order. So embeddings of portraits by CLIP's and SigLIP's preparation change with the release, and
# values below 0 or above 255, which are clipped between the two passes, are why bicubic differs more than `BOX`.
# Expected: the same pixels, or other ones for all images. Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
for version in 12.3.0 13.0.0; do
    python3 -m venv "venv-$version"
    "venv-$version/bin/pip" install --quiet --disable-pip-version-check "pillow==$version" numpy==2.4.6
done
cat > shrink.py <<'P'
import sys

import numpy as np
from PIL import Image

random, found, (name, *_) = np.random.default_rng(3), {}, sys.argv[1:]
for width, height in ((341, 256), (256, 341), (256, 640), (640, 256)):
    image = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
    for kernel in (Image.Resampling.BICUBIC, Image.Resampling.BOX):
        for size in ((224, 224), (32, 32)):
            key = f"{width} x {height} to {size[0]} x {size[1]}, {kernel.name}"
            found[key] = np.asarray(image.resize(size, kernel))
            rows_first = image.resize((width, size[1]), kernel).resize(size, kernel)
            found[f"{key}: rows first"] = np.asarray(rows_first)
np.savez(name, **found)
P
cat > compare.py <<'P'
import numpy as np

old, new = np.load("12.3.0.npz"), np.load("13.0.0.npz")
differ = {}
for key in (key for key in old.files if "first" not in key):
    levels = np.abs(old[key].astype(int) - new[key])
    print(f"{key:38} {(levels > 0).mean():6.1%} of the values differ, by {levels.max()} at most")
    if levels.any():
        differ[key] = (levels > 0).mean(), levels.max()
        assert np.array_equal(new[key], old[f"{key}: rows first"]), f"{key}: not rows before columns"
assert differ and all(int(key.split()[0]) < int(key.split()[2]) for key in differ), "not tall images alone"
share, most = differ["256 x 341 to 224 x 224, BICUBIC"]
assert share > 0.2 and most > 10
P
for version in 12.3.0 13.0.0; do "venv-$version/bin/python" shrink.py "$version.npz"; done
venv-13.0.0/bin/python compare.py

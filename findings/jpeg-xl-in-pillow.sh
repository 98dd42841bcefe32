#!/usr/bin/env bash
# JPEG XL in Pillow, by pillow-jxl-plugin 1.3.8 and by the plug-in of pylibjxl 0.5.0:
# 1. An animation shows its last frame, where Pillow's own formats (GIF, WebP, AVIF, APNG) show the first. Its other frames
#    cannot be reached, and the first of the two plug-ins says that it is a still image.
# 2. pylibjxl drops a colour space that the file declares without an ICC profile, as JPEG XL usually does: a gray of 0.25 in
#    linear light is 63 of 255 with no profile, and 136 where it is converted by the profile that the other plug-in gives.
# Exits with 1 if that changes.
set -euo pipefail
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check pillow==13.0.0 numpy==2.4.6 pillow-jxl-plugin==1.3.8 pylibjxl==0.5.0 imagecodecs==2026.3.6
venv/bin/python - <<'P'
import io

import imagecodecs
import numpy as np
import pillow_jxl  # noqa: F401 (Image.open reads JPEG XL)
from PIL import Image, ImageCms
from pylibjxl.pillow_plugin import JxlImageFile

frames = np.stack([np.full((48, 64, 3), colour, np.uint8) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))])
animation = imagecodecs.jpegxl_encode(frames, lossless=True)
linear = imagecodecs.jpegxl_encode(np.full((48, 64, 3), 0.25, np.float32), lossless=True)

for name, read in (("pillow-jxl-plugin", Image.open), ("pylibjxl", JxlImageFile)):
    image = read(io.BytesIO(animation))
    shown = image.convert("RGB").getpixel((0, 0))
    print(f"{name}: frames {getattr(image, 'n_frames', 'unknown')}, animated {image.is_animated}, shows {shown}")
    assert shown == (0, 0, 255)
    assert image.is_animated == (name == "pylibjxl")

    image = read(io.BytesIO(linear))
    image.load()
    stored, profile = image.getpixel((0, 0)), image.info.get("icc_profile")
    print(f"{name}: linear gray is {stored}, with {'a' if profile else 'no'} profile")
    assert stored == (63, 63, 63) and bool(profile) == (name == "pillow-jxl-plugin")
    if profile:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        right = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB").getpixel((0, 0))
        print(f"in sRGB {right}")
        assert abs(right[0] - 136) <= 1
P

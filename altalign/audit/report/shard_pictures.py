"""Thumbnails of images in shards. Beside the galleries, which decode nothing: notebooks wait for no kernels."""

from altalign import storage
from altalign.audit.report.galleries import Picture
from altalign.filters import pixels, thumbnails
from altalign.machine import memory


def thumbnail(tar: str, offset: int, size: int, *, pixels_at_most: int) -> Picture | None:
    """A thumbnail of an image in a shard; None if it cannot be decoded, or not in this machine's memory."""
    limits = {"colour": True, "pixels_at_most": pixels_at_most, "short_side_px": thumbnails.WEBP_SIDE_PX}
    data = storage.read_range(tar, offset, size)
    try:
        with memory.reserved(0 if memory.is_ample() else pixels.peak_bytes(data, **limits)):
            decoded = pixels.decode(data, **limits).pixels
    except MemoryError:
        return None
    return None if decoded is None else Picture(thumbnails.webp(decoded))

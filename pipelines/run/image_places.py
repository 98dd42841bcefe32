"""Where the images of an archive are: fixed-size rows sorted by image_id, so that any range of ids is one slice.

Where an image was captured several times, the first capture in input order counts: the smallest (file, row). Revisit
records count where there is none.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from altalign.filters import identity
from altalign.storage import parquet


class Kind(IntEnum):
    """How the bytes of an image are found."""

    RECORD = 0  # offset of a WARC record in the input file
    RANGE = 1  # offset and length in the input file
    COPIED = 2  # offset and length in the blob that extract wrote beside the file's pool
    ROW = 3  # row of a table: gathered into a blob before images are fetched
    FILE = 4  # a whole file: its number in a part of a folder


REVISIT = len(Kind)  # among payloads, a kind: offset and length are the id of the name of one

# Ids are 16 bytes, which NumPy compares byte by byte: in the order of their hex.
PLACE = np.dtype(
    [("image_id", "S16"), ("file", "<u4"), ("kind", "<u4"), ("row", "<i8"), ("offset", "<i8"), ("length", "<i8")]
)


Places = npt.NDArray[np.void]  # PLACE[n]
Ids = npt.NDArray[np.bytes_]  # S16[n]


def as_bytes(ids: npt.NDArray[np.uint8]) -> Ids:
    """The ids uint8[n, 16] as S16[n]."""
    return np.ascontiguousarray(ids).view("S16").ravel()


class Collected:
    """Collects the places that a reader finds in one file.

    `plain` is the kind of those without a length, `ranged` of those with one.
    """

    def __init__(self, file: int, *, plain: Kind = Kind.RECORD, ranged: Kind = Kind.RANGE):
        self._file, self._plain, self._ranged, self._copied, self._rows = file, plain, ranged, 0, 0
        self._parts, self._payloads, self._revisits = list[Places](), list[Places](), 0
        self._notices = list[Places]()

    def __len__(self) -> int:
        return self._rows + self._revisits

    def add(
        self,
        places: pa.RecordBatch,
        images: BinaryIO,
        payloads: pa.RecordBatch | None = None,
        notices: Sequence[int] = (),
    ) -> None:
        """Add places (`schema.IMAGE_PLACE`); images that cannot be read at an offset are copied to `images`."""
        part = np.zeros(places.num_rows, PLACE)
        part["image_id"] = as_bytes(identity.image_ids(parquet.strings(places, "image_identity")))
        part["file"], part["row"] = self._file, np.arange(self._rows, self._rows + len(part))
        part["offset"] = places["offset"].fill_null(-1).to_numpy()
        part["length"] = places["length"].fill_null(-1).to_numpy()
        part["kind"] = np.where(places["length"].is_valid().to_numpy(zero_copy_only=False), self._ranged, self._plain)
        for row in np.flatnonzero(places["bytes"].is_valid().to_numpy(zero_copy_only=False)).tolist():
            data = places["bytes"][row].as_buffer()
            images.write(data)
            part[["kind", "offset", "length"]][row] = (Kind.COPIED, self._copied, data.size)
            self._copied += data.size
        self._rows += len(part)
        self._parts.append(part)
        self._notices.append(part[list(notices)])
        if payloads is not None and payloads.num_rows:
            self._payloads.append(_named(part, payloads))
            self._revisits += int(np.count_nonzero(self._payloads[-1]["kind"] == REVISIT))

    def payloads(self) -> Places:
        """Places by the ids of their payloads' names, and revisits, in input order."""
        return np.concatenate([np.zeros(0, PLACE), *self._payloads])

    def notices(self) -> Places:
        """The places of what origins say, in input order."""
        return np.concatenate([np.zeros(0, PLACE), *self._notices])

    def sorted(self) -> Places:
        """All places, sorted by image_id, then by input order."""
        return in_order(np.concatenate(self._parts) if self._parts else np.zeros(0, PLACE))


def _named(places: Places, payloads: pa.RecordBatch) -> Places:
    """Rows of `schema.PAYLOAD` of these places."""
    place_numbers, names = payloads["place"], as_bytes(identity.image_ids(parquet.strings(payloads, "name")))
    is_revisit = place_numbers.is_null().to_numpy(zero_copy_only=False)
    rows = np.zeros(len(names), PLACE)
    rows[~is_revisit] = places[place_numbers.drop_null().to_numpy()]
    rows["image_id"] = names
    revisits = rows[is_revisit]
    revisits["image_id"] = as_bytes(identity.image_ids(parquet.strings(payloads, "image_identity")))[is_revisit]
    revisits["offset"], revisits["length"] = names[is_revisit].view("<i8").reshape(-1, 2).T
    revisits["kind"] = REVISIT
    rows[is_revisit] = revisits
    return rows


def followed(revisits: Places, files: Iterable[tuple[Places, Places]]) -> Places:
    """The places of images that only revisit records have, sorted by image_id.

    Args:
        revisits: those of all files, in input order.
        files: the places of each file in input order, sorted, and its payloads.
    """
    names = np.stack([revisits["offset"], revisits["length"]], axis=1).view("S16").ravel()
    chosen, is_found, is_own = np.zeros(len(names), PLACE), np.zeros(len(names), bool), np.zeros(len(names), bool)
    for places, payloads in files:
        is_own |= first_of_each(places, revisits["image_id"])[1]
        place, is_here = first_of_each(in_order(payloads[payloads["kind"] != REVISIT]), names)
        chosen[is_here & ~is_found] = place[is_here & ~is_found]
        is_found |= is_here
    chosen["image_id"] = revisits["image_id"]
    chosen = chosen[is_found & ~is_own]
    return chosen[np.unique(chosen["image_id"], return_index=True)[1]]


def in_order(places: Places) -> Places:
    """The places, sorted by image_id, then by input order."""
    return places[np.lexsort((places["row"], places["file"], places["image_id"]))]


def first_of_each(places: Places, image_ids: Ids) -> tuple[Places, npt.NDArray[np.bool_]]:
    """For each of n image_ids its first place among the sorted `places`, and whether there is one."""
    if not len(places):
        return np.zeros(len(image_ids), PLACE), np.zeros(len(image_ids), bool)
    at = np.minimum(np.searchsorted(places["image_id"], image_ids), len(places) - 1)
    return places[at], places["image_id"][at] == image_ids

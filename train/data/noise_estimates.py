"""`noise/losses.parquet`: how noisy each pair is, by its key, and the look-up of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.errors import UnreadableError, UsageError
from altalign.train.data.index import Pairs
from altalign.train.settings.training import OF_RUN

FILE = "noise/losses.parquet"  # in the folder of a training run
LOSSES = pa.schema(
    [
        ("key", pa.string()),  # of the pair, as curation gave it
        (
            "loss",
            pa.float32(),
        ),  # contrastive, of both directions averaged; null where the image cannot be decoded
        ("eps", pa.float32()),  # the probability that it is noisy; null likewise
    ]
)

Keys = npt.NDArray[np.bytes_]  # 16 bytes each, which sort as their hex digits do


@dataclass(frozen=True)
class Estimates:
    """How noisy pairs are: keys in their order, eps (n,), and the SHA-256 of the file."""

    keys: Keys
    eps: npt.NDArray[np.float32]
    digest: str

    def of(self, keys: Sequence[str]) -> npt.NDArray[np.float32]:
        """The eps of some keys, 32 hex digits each, all of which are known."""
        return self.eps[np.searchsorted(self.keys, numbers_of(keys))]

    def missing(self, keys: Keys) -> int:
        """How many of some keys have no estimate."""
        return missing(self.keys, keys)


def missing(known: Keys, keys: Keys) -> int:
    """How many of some keys are not among those that are known, which are sorted."""
    found = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return int(np.count_nonzero(known[found] != keys)) if len(known) else len(keys)


def numbers_of(keys: Sequence[str]) -> Keys:
    """Keys of 32 hex digits as bytes."""
    return np.frombuffer(bytes.fromhex("".join(keys)), "S16")


def keys_of(pairs: Pairs) -> Keys:
    """The keys of pairs of an index."""
    return np.ascontiguousarray(pairs["key"]).view("S16")[:, 0]


def names_of(keys: Keys) -> list[str]:
    """Keys as 32 hex digits each."""
    digits = np.ascontiguousarray(keys).tobytes().hex()
    return [digits[first : first + 32] for first in range(0, len(digits), 32)]


def write(path: str, keys: Keys, losses: npt.NDArray[np.float32], eps: npt.NDArray[np.float32]) -> None:
    """Write the table, in the order given; a loss that is no number becomes null, with its eps."""
    is_lost = np.isnan(losses)
    table = pa.Table.from_arrays(
        [pa.array(names_of(keys)), pa.array(losses, mask=is_lost), pa.array(eps, mask=is_lost)], schema=LOSSES
    )
    with storage.write(path) as file:
        pq.write_table(table, file)


def path_of(given: str) -> str:
    """The file that a setting names: a Parquet file, or a training run (`run:FOLDER`, or its folder)."""
    folder = given.removeprefix(OF_RUN)
    return folder if folder.endswith(".parquet") else storage.join(folder, FILE)


def check_there(given: str) -> None:
    """Refuse a setting that names estimates that nobody made.

    Raises:
        UsageError: there are none.
    """
    if not storage.exists(path_of(given)):
        raise UsageError(
            f"[noise] estimates: {path_of(given)}: no such file; `altalign nlip noise RUN` makes it of a training run, "
            "or leave the setting out"
        )


def read(given: str) -> Estimates:
    """The estimates that a setting names.

    Raises:
        UsageError: there are none.
        UnreadableError: the file has other columns.
    """
    check_there(given)
    path = path_of(given)
    data = storage.read_bytes(path)
    try:
        table = pq.read_table(pa.BufferReader(data), columns=["key", "eps"])
        keys, eps = numbers_of([str(key) for key in table["key"].to_pylist()]), np.nan_to_num(table["eps"].to_numpy())
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        said = " ".join(str(error).split())
        raise UnreadableError(f"{path}: no estimates of noise, with columns key and eps ({said:.100})") from None
    order = np.argsort(keys, kind="stable")
    return Estimates(keys[order], np.asarray(eps, np.float32)[order], sha256(data).hexdigest())

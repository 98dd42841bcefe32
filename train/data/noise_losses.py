"""What `altalign nlip noise` has left in the folder of a training run."""

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from altalign import storage
from altalign.train.data import noise_estimates
from altalign.train.data.noise_estimates import Keys
from altalign.train.data.noise_mixture import Mixture
from altalign.train.data.samples import Samples
from altalign.train.run import training_folder
from altalign.train.settings.training import TrainConfig

Losses = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Measured:
    """Pairs in the order of their keys, the loss of each (NaN: undecodable) and its eps, and the mixture."""

    numbers: npt.NDArray[np.int64]  # in `Samples`
    losses: Losses
    eps: npt.NDArray[np.float32]
    mixture: Mixture


def known(config: TrainConfig, samples: Samples) -> Measured | None:
    """What was measured of a run, from its files; None where nothing was."""
    facts = storage.read_json(mark_of(config))
    if not facts or not storage.exists(table_of(config)):
        return None
    table = pq.read_table(pa.BufferReader(storage.read_bytes(table_of(config))))
    losses, eps = (np.asarray(table[name].to_numpy(), np.float32) for name in ("loss", "eps"))
    keys, numbers = in_order(samples)
    if facts["asked"]["keys"] != sha256(keys.tobytes()).hexdigest():
        return None
    return Measured(numbers, losses, np.nan_to_num(eps), Mixture(**facts["mixture"]))


def in_order(samples: Samples) -> tuple[Keys, npt.NDArray[np.int64]]:
    """The keys of all pairs, in their order and each once, and the number of a pair of each."""
    keys = noise_estimates.keys_of(samples.pairs(np.arange(len(samples), dtype=np.int64)))
    return np.unique(keys, return_index=True)


def table_of(config: TrainConfig) -> str:
    """The table of losses."""
    return training_folder.path(config, *noise_estimates.FILE.split("/"))


def mark_of(config: TrainConfig) -> str:
    """What says of which checkpoint and pairs they are, and has the mixture."""
    return training_folder.path(config, "noise", "noise.json")

"""One of several processes that evaluate the same images: `python shared_images.py RANK RANKS FOLDER`."""

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from altalign.eval.encoded import Encoder, Features
from altalign.train.exchange.encoders import sharing_of
from altalign.train.run.ranks import Ranks
from tests.eval.one_hot import images_of

SIDE = 2
NAMES = [b"1", b"broken", b"2", b"3", b"broken", b"5", b"6"]


def main() -> None:
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", meeting, timedelta(seconds=60), rank=rank, world_size=ranks)
    decoded: list[str] = []

    def decode(data: bytes) -> Tensor:
        decoded.append(data.decode())
        of_channels = torch.tensor([int(data), 20, 30], dtype=torch.uint8)  # ValueError: it is no number
        return of_channels.expand(SIDE, SIDE, 3).permute(2, 0, 1)

    def encode(images: Tensor) -> Tensor:
        return images.float().mean((2, 3))

    alone = Encoder(decode, encode, lambda _: torch.empty(0))
    shared = replace(alone, sharing=sharing_of(Ranks(rank, ranks, torch.device("cpu")), SIDE))
    found = Features(shared, batch=3).of_images(images_of(NAMES))
    said = {"decoded": decoded, "embeddings": found.embeddings.tolist(), "undecodable": found.undecodable}
    (folder / f"{rank}.json").write_text(json.dumps(said))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

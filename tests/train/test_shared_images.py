"""Three processes that evaluate: an image is decoded by one of them, and all have the embeddings of all."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.train import shared_images
from tests.train.shared_images import NAMES
from tests.warm.python import warm

ROOT = Path(__file__).parents[2]
RANKS = 3


@pytest.mark.trained
def test_each_image_is_decoded_by_one_rank_and_known_to_all(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [warm(), shared_images.__file__, str(rank), str(RANKS), str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [process.communicate(timeout=800)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert all(process.returncode == 0 for process in started), "\n".join(said)
    found = [json.loads((tmp_path / f"{rank}.json").read_bytes()) for rank in range(RANKS)]
    assert sorted(name for one in found for name in one["decoded"]) == sorted(name.decode() for name in NAMES)
    for one in found:
        assert one["embeddings"] == [[number, 20, 30] for number in (1, 2, 3, 5, 6)]
        assert one["undecodable"] == [1, 4]

"""A model of open_clip with the same random weights each time."""

from pathlib import Path

import open_clip
import torch
from safetensors.torch import save_file


def saved(name: str, folder: Path) -> Path:
    """Write its weights; returns the file."""
    torch.manual_seed(0)
    path = folder / "model.safetensors"
    save_file(open_clip.create_model(name).state_dict(), path)
    return path

"""MAE's decoder (He et al., arXiv 2111.06377): from the patches that were seen to the pixels of those that were not."""

import torch
from timm.models.vision_transformer import Block
from torch import nn

from altalign.train.settings.nlip import ReconstructionSettings

HEAD_WIDTH = 64  # NLIP, experimental settings
_EPSILON = 1e-6  # of a patch's variance, as in MAE's code


class ImageDecoder(nn.Module):
    """Blocks over all places of an image; what stands at masked ones is learned."""

    def __init__(self, settings: ReconstructionSettings, *, image_width: int, patch_px: int) -> None:
        super().__init__()
        self.patch_px, width = patch_px, settings.width
        self.embed = nn.Linear(image_width, width)
        self.masked = nn.Parameter(torch.empty(1, 1, width))
        nn.init.normal_(self.masked, std=0.02)
        self.blocks = nn.ModuleList(
            [Block(width, max(1, width // HEAD_WIDTH), qkv_bias=True) for _ in range(settings.blocks)]
        )
        self.norm = nn.LayerNorm(width)
        self.pixels = nn.Linear(width, 3 * patch_px**2)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, states: torch.Tensor, kept: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """Predicted pixels (n, rows * columns, 3 * patch²).

        `states` (n, 1 + k, width) are of [CLS] and of the patches `kept`, int64 (n, k), counted row by row.
        """
        seen = self.embed(states)
        places = self.masked.to(seen.dtype).expand(len(seen), rows * columns, -1)
        places = places.scatter(1, kept[..., None].expand(-1, -1, seen.shape[-1]), seen[:, 1:])
        at = positions(rows, columns, seen.shape[-1], seen.device).to(seen.dtype)
        tokens = torch.cat([seen[:, :1], places + at], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.pixels(self.norm(tokens[:, 1:]))

    def losses(self, states: torch.Tensor, kept: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """The mean squared error over the masked patches of each image (n,), float32.

        Of a patch the pixels count after its own mean and deviation are taken off (MAE's normalised target).
        """
        rows, columns = (side // self.patch_px for side in images.shape[2:])
        wanted = normalised(patches(images.float(), self.patch_px))
        errors = (self(states, kept, rows, columns).float() - wanted).square().mean(2)
        is_masked = torch.ones_like(errors).scatter(1, kept, 0.0)
        return (errors * is_masked).sum(1) / is_masked.sum(1).clamp(min=1)


def patches(images: torch.Tensor, px: int) -> torch.Tensor:
    """The patches of images (n, 3, h, w), row by row: (n, h/px * w/px, px * px * 3)."""
    count, colours, height, width = images.shape
    cut = images.reshape(count, colours, height // px, px, width // px, px)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(count, -1, px * px * colours)


def normalised(patches: torch.Tensor) -> torch.Tensor:
    """Patches (n, p, values) of mean 0 and variance 1, each by itself; pixels are from 0 to 255."""
    scaled = patches / 255
    return (scaled - scaled.mean(2, keepdim=True)) / (scaled.var(2, keepdim=True) + _EPSILON).sqrt()


def positions(rows: int, columns: int, width: int, device: torch.device) -> torch.Tensor:
    """MAE's fixed sines and cosines of rows and columns (rows * columns, width), a quarter of the width each."""
    quarter = width // 4
    rates = 1 / 10_000 ** (torch.arange(quarter, device=device) / quarter)
    parts = []
    for at in torch.meshgrid(torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij"):
        angles = at.reshape(-1, 1) * rates
        parts += [angles.sin(), angles.cos()]
    return nn.functional.pad(torch.cat(parts, 1), (0, width - 4 * quarter))

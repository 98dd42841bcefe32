"""ViT of timm's blocks (ZeroVL section 2.2; arXiv 2010.11929, table 1), and MAE's decoder of its masked patches."""

from functools import partial
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from timm.layers.norm import LayerNorm
from timm.models import checkpoint_seq
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

from altalign.train.model.blocks import Tower
from altalign.train.run import weights
from altalign.train.settings.nlip import ReconstructionSettings
from altalign.train.settings.training import ImageTowerSettings

SIZES = {"ti": (192, 12), "s": (384, 12), "b": (768, 12), "l": (1024, 24)}  # width, blocks; Ti and S are DeiT's
HEAD_WIDTH = 64  # of the decoder too (NLIP, experimental settings)
_EPSILON = 1e-6  # of a patch's variance, as in MAE's code
MEANS_AND_DEVIATIONS = {
    "range": ((0.5,) * 3, (0.5,) * 3),
    "imagenet": (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD),
    "clip": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD),
}
# what CLIP's and SigLIP's have beside timm's ViT: a norm before the blocks; a query in the place of [CLS]
FORMS: dict[str, dict[str, Any]] = {
    "vit": {},
    "clip": {"pre_norm": True, "norm_layer": partial(LayerNorm, eps=1e-5)},
    "siglip": {"class_token": False, "global_pool": "map"},
}


def patch_px(architecture: str) -> int:
    """Side of a patch of an architecture such as "vit_b16"."""
    return int(architecture[-2:])


class VisionTower(Tower, VisionTransformer):
    """Images to the [CLS] of the last block, or what SigLIP's pooling makes of its patches, `num_features` wide.

    The names of its state are those of timm's vit_*_patch*_224 (`_clip_224`, `_siglip_224`), less `head`. Positions are
    interpolated for images of another side than `positions_px`.
    """

    after_layers = ("norm.", "attn_pool.")
    num_features: int
    divisor: torch.Tensor
    shift: torch.Tensor

    def __init__(self, settings: ImageTowerSettings) -> None:
        patch = patch_px(settings.architecture)
        width, blocks = SIZES[settings.architecture.partition("_")[2][:-2]]
        heads = max(1, round(width / HEAD_WIDTH * (settings.width or 1)))
        super().__init__(
            img_size=settings.positions_px,
            patch_size=patch,
            num_classes=0,
            embed_dim=HEAD_WIDTH * heads,
            depth=max(1, round(blocks * (settings.depth or 1))),
            num_heads=heads,
            dynamic_img_size=True,
            act_layer=settings.activation,
            **FORMS[settings.family],
        )
        mean, deviation = MEANS_AND_DEVIATIONS[settings.normalisation]
        self.register_buffer("divisor", 255 * torch.tensor(deviation).view(3, 1, 1), persistent=False)
        self.register_buffer("shift", (torch.tensor(mean) / torch.tensor(deviation)).view(3, 1, 1), persistent=False)
        if settings.weights and settings.family != "vit":
            weights.check_published(settings.weights, "image", activation=settings.activation, heads=heads)
        self.begin(settings, self, prefixes=("image_tower.",), unused=("head.",))

    def layers(self) -> list[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    def forward(self, x: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Features (n, num_features) of images, `pooled` from their `states`."""
        return self.pooled(self.states(x, kept))

    def pooled(self, states: torch.Tensor) -> torch.Tensor:
        """Features (n, num_features) of states: the [CLS]; or what is pooled."""
        return states[:, 0] if self.attn_pool is None else self.attn_pool(states)

    def states(self, x: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        """States (n, 1 + patches, num_features) of images (n, 3, height, width), uint8 or floats from 0 to 255.

        SigLIP's have no [CLS] before the patches. Sides are multiples of a patch. `kept`, int64 (n, k), are the patches
        that are looked at, counted row by row.
        """
        pixels = x.to(self.get_parameter("norm.weight").dtype) / self.divisor - self.shift
        tokens = self._pos_embed(self.patch_embed(pixels))
        if kept is not None:
            chosen = kept[..., None].expand(-1, -1, tokens.shape[-1])
            before = self.num_prefix_tokens
            tokens = torch.cat([tokens[:, :before], tokens[:, before:].gather(1, chosen)], dim=1)
        tokens = self.norm_pre(tokens)
        tokens = checkpoint_seq(self.blocks, tokens) if self.grad_checkpointing else self.blocks(tokens)
        return self.norm(tokens)


class ImageDecoder(nn.Module):
    """MAE's decoder (He et al., arXiv 2111.06377): blocks over all places; what stands at masked ones is learned."""

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
        """The mean squared error over the masked patches of each image (n,), float32, of MAE's normalised pixels."""
        rows, columns = (side // self.patch_px for side in images.shape[2:])
        masked = normalised(patches(images.float(), self.patch_px))
        errors = (self(states, kept, rows, columns).float() - masked).square().mean(2)
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

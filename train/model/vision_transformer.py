"""ViT of timm's blocks (ZeroVL section 2.2; Dosovitskiy et al., arXiv 2010.11929, table 1)."""

from typing import Self

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import checkpoint_seq
from timm.models.vision_transformer import VisionTransformer

from altalign.train.run import weights
from altalign.train.settings.training import ImageTowerSettings

SIZES = {"ti": (192, 12), "s": (384, 12), "b": (768, 12), "l": (1024, 24)}  # width, blocks; Ti and S are DeiT's
HEAD_WIDTH = 64
MEANS_AND_DEVIATIONS = {"range": ((0.5,) * 3, (0.5,) * 3), "imagenet": (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)}


def patch_px(architecture: str) -> int:
    """Side of a patch of an architecture such as "vit_b16"."""
    return int(architecture[-2:])


class VisionTower(VisionTransformer):
    """Images to the [CLS] of the last block.

    The names of its state are those of timm's vit_*_patch*_224, less `head`. Positions are interpolated for images of
    another side than `positions_px`.

    Attributes:
        num_features: width of the features.
    """

    num_features: int
    divisor: torch.Tensor
    shift: torch.Tensor

    def __init__(self, settings: ImageTowerSettings) -> None:
        patch = patch_px(settings.architecture)
        width, blocks = SIZES[settings.architecture.removeprefix("vit_")[:-2]]
        heads = max(1, round(width / HEAD_WIDTH * (settings.width or 1)))
        super().__init__(
            img_size=settings.positions_px,
            patch_size=patch,
            num_classes=0,
            embed_dim=HEAD_WIDTH * heads,
            depth=max(1, round(blocks * (settings.depth or 1))),
            num_heads=heads,
            dynamic_img_size=True,
        )
        mean, deviation = MEANS_AND_DEVIATIONS[settings.normalisation]
        self.register_buffer("divisor", 255 * torch.tensor(deviation).view(3, 1, 1), persistent=False)
        self.register_buffer("shift", (torch.tensor(mean) / torch.tensor(deviation)).view(3, 1, 1), persistent=False)
        self.frozen = settings.frozen
        if settings.weights:
            weights.read_into(
                self, settings.weights, setting="[image_tower] weights", prefixes=("image_tower.",), unused=("head.",)
            )
        if settings.frozen:
            self.requires_grad_(requires_grad=False).eval()

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """As torch's, but a frozen tower stays in evaluation: no path is dropped."""
        return super().train(mode and not self.frozen)

    def forward(self, x: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Features (n, num_features) of images: the [CLS] of `states`."""
        return self.states(x, kept)[:, 0]

    def states(self, x: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        """States (n, 1 + patches, num_features) of images (n, 3, height, width), uint8 or floats from 0 to 255.

        Sides are multiples of a patch. `kept`, int64 (n, k), are the patches that are looked at, counted row by row.
        """
        pixels = x.to(self.get_parameter("norm.weight").dtype) / self.divisor - self.shift
        tokens = self._pos_embed(self.patch_embed(pixels))
        if kept is not None:
            chosen = kept[..., None].expand(-1, -1, tokens.shape[-1])
            tokens = torch.cat([tokens[:, :1], tokens[:, 1:].gather(1, chosen)], dim=1)
        tokens = checkpoint_seq(self.blocks, tokens) if self.grad_checkpointing else self.blocks(tokens)
        return self.norm(tokens)

"""The dual encoder: two towers, linear layers after them where needed, the temperature (ALIGN sections 4.1, 5)."""

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.nn import functional

from altalign.train.model.image_tower import ImageTower
from altalign.train.model.text_tower import TextTower
from altalign.train.model.vision_transformer import VisionTower
from altalign.train.settings import ImageTowerSettings, TextTowerSettings

if TYPE_CHECKING:
    from altalign.train.step.mixup import Mixup

Part = Literal["image_tower", "image_projection", "text_tower", "text_projection", "temperature"]
PARTS: tuple[Part, ...] = ("image_tower", "image_projection", "text_tower", "text_projection", "temperature")


class Temperature(nn.Module):
    """ALIGN's sigma, which divides similarities. Its logarithm is the parameter, so that it stays above 0."""

    logarithm: torch.Tensor

    def __init__(self, start: float, *, learned: bool, at_least: float = 1e-6, at_most: float = 1e6) -> None:
        super().__init__()
        self._range = math.log(at_least), math.log(at_most)
        logarithm = torch.tensor(math.log(start))
        if learned:
            self.logarithm = nn.Parameter(logarithm)
        else:
            self.register_buffer("logarithm", logarithm)

    def value(self) -> torch.Tensor:
        """The temperature, with gradient where it is learned."""
        return self.logarithm.exp()

    @torch.no_grad()
    def clamp(self) -> None:
        """Take it back into its range, after a step."""
        self.logarithm.clamp_(*self._range)


class DualEncoder(nn.Module):
    """Images and captions to embeddings of one width.

    A feature is what a tower and its projection give; an embedding is that at length 1, float32 under autocast too.
    Images are uint8 or floats from 0 to 255, (n, 3, height, width); tokens int64 (n, length), of which `mask` tells
    those that are there. First weights depend on `seed` alone.
    """

    def __init__(
        self,
        image: ImageTowerSettings,
        text: TextTowerSettings,
        *,
        vocabulary: int,
        tokens_at_most: int,
        temperature: Temperature | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # of the CPU alone, where weights are drawn
            self.image_tower = VisionTower(image) if image.is_vit else ImageTower(image)
            self.text_tower = TextTower(text, vocabulary=vocabulary, tokens_at_most=tokens_at_most)
            own = self.image_tower.num_features
            self.width: int = image.embedding_width or own
            self.image_projection = nn.Identity() if self.width == own else _linear(own, self.width)
            self.text_projection = _linear(self.text_tower.num_features, self.width)
        self.temperature = temperature or Temperature(1.0, learned=True)

    def image_features(self, images: torch.Tensor) -> torch.Tensor:
        """Features (n, width)."""
        return self.image_projection(self.image_tower(images))

    def text_features(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Features (n, width)."""
        return self.text_projection(self.text_tower(tokens, mask))

    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        """Embeddings (n, width)."""
        return _at_length_1(self.image_features(images))

    def encode_text(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Embeddings (n, width)."""
        return _at_length_1(self.text_features(tokens, mask))

    def forward(
        self,
        images: torch.Tensor,
        tokens: torch.Tensor,
        mask: torch.Tensor,
        *,
        mixup: "Mixup | None" = None,
        kept: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeddings of images and of captions, in training.

        `mixup` mixes pixels, or features of captions before they have length 1; `kept`, int64 (n, k), are the patches
        that a ViT looks at.
        """
        mixes = mixup.of if mixup is not None else ""
        seen = mixup.mixed(images) if mixup is not None and mixes == "images" else images
        of_images = self.image_tower(seen) if kept is None else self.image_tower(seen, kept)
        of_texts = self.text_features(tokens, mask)
        if mixup is not None and mixes == "texts":
            of_texts = mixup.mixed(of_texts)
        return _at_length_1(self.image_projection(of_images)), _at_length_1(of_texts)

    def checkpoint_activations(self) -> None:
        """Compute activations of both towers again instead of keeping them."""
        self.image_tower.set_grad_checkpointing()
        self.text_tower.set_grad_checkpointing()


def part_of(name: str) -> Part:
    """The part of the model that a parameter belongs to, by its name, wrapped (`module.…`) or not.

    Raises:
        ValueError: it is of no part.
    """
    pieces = name.split(".")
    for part in PARTS:
        if part in pieces:
            return part
    raise ValueError(f"{name}: no parameter of a dual encoder")


def _linear(width: int, width_after: int) -> nn.Linear:
    """A linear layer as Keras starts it (COYO-ALIGN's): Glorot's uniform weights, no bias."""
    layer = nn.Linear(width, width_after)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _at_length_1(features: torch.Tensor) -> torch.Tensor:
    return functional.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)

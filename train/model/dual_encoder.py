"""The dual encoder: two towers, linear layers after them where needed, the temperature (ALIGN sections 4.1, 5).

And the classifier: the image tower alone, with a head.
"""

import math
from functools import partial
from typing import get_args

import torch
from torch import nn
from torch.nn import functional

from altalign.train.model.drawn import Mixup
from altalign.train.model.image_tower import ImageTower
from altalign.train.model.text_tower import BartTower, Captioner, ClipTower, Packed, TextTower
from altalign.train.model.vision_transformer import ImageDecoder, VisionTower, patch_px
from altalign.train.run import weights
from altalign.train.settings.nlip import CaptionerSettings, ReconstructionSettings
from altalign.train.settings.training import OF_RUN, ImageTowerSettings, TextTowerSettings
from altalign.train.settings.types import Part

PARTS: tuple[Part, ...] = get_args(Part)
_TEXT_TOWERS = {"bert": TextTower, "bart": BartTower, "clip": ClipTower, "siglip": ClipTower}
_HEAD_STD = 0.01  # ours: the paper does not say how the layer begins
Prompted = tuple[torch.Tensor, torch.Tensor]  # tokens int64 (n, length) and their mask


class Temperature(nn.Module):
    """ALIGN's sigma, which divides similarities. Its logarithm is the parameter, so that it stays above 0.

    For a loss by sigmoids a `bias` is added to what it divides (SigLIP, section 3.2), learned as it is.
    """

    logarithm: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self, start: float, *, learned: bool, at_least: float = 1e-6, at_most: float = 1e6, bias: float | None = None
    ) -> None:
        super().__init__()
        self._range = math.log(at_least), math.log(at_most)
        for name, number in (("logarithm", math.log(start)), ("bias", bias)):
            value = None if number is None else torch.tensor(number)
            if learned and value is not None:
                setattr(self, name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    def forward(self) -> torch.Tensor:
        """What a loss makes logits with: the temperature, (), or temperature and bias, (2)."""
        return self.value() if self.bias is None else torch.stack([self.value(), self.bias])

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
        reconstruction: ReconstructionSettings | None = None,
        captioner: CaptionerSettings | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        captioner = captioner if captioner is not None and captioner.weight else None
        positions = max(tokens_at_most, captioner.tokens_at_most if captioner is not None else 0)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # of the CPU alone, where weights are drawn
            self.image_tower = image_tower_of(image)
            text_tower = _TEXT_TOWERS[text.architecture](text, vocabulary=vocabulary, positions=positions)
            self.text_tower: TextTower | BartTower | ClipTower = text_tower
            own = self.image_tower.num_features
            self.width: int = image.embedding_width or own
            is_clip = [tower.architecture.partition("_")[0] == "clip" for tower in (image, text)]
            projection = partial(_linear, own, self.width, has_bias=not is_clip[0])
            self.image_projection = nn.Identity() if self.width == own else projection()
            self.text_projection = _linear(self.text_tower.num_features, self.width, has_bias=not is_clip[1])
            _from_run(self.image_projection, image, "image")
            _from_run(self.text_projection, text, "text")
            self.image_decoder = self.captioner = None
            if reconstruction is not None and reconstruction.weight:
                patch = patch_px(image.architecture)
                self.image_decoder = ImageDecoder(reconstruction, image_width=own, patch_px=patch)
            if captioner is not None:
                sizes = {"vocabulary": vocabulary, "positions": positions, "image_width": own}
                self.captioner = Captioner(captioner, text, **sizes)
        self.temperature = temperature or Temperature(1.0, learned=True)

    @property
    def has_decoders(self) -> bool:
        """Whether pairs have losses of their own beside the contrastive one."""
        return self.image_decoder is not None or self.captioner is not None

    @property
    def packs_captions(self) -> bool:
        """Whether the text tower takes captions without their padding."""
        return isinstance(self.text_tower, TextTower)

    def image_features(self, images: torch.Tensor) -> torch.Tensor:
        """Features (n, width)."""
        return self.image_projection(self.image_tower(images))

    def text_features(self, tokens: torch.Tensor, mask: torch.Tensor, packed: Packed | None = None) -> torch.Tensor:
        """Features (n, width). No state of an image reaches them."""
        given = (tokens, mask) if packed is None else (tokens, mask, packed)
        return self.text_projection(self.text_tower(*given))

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
        mixup: Mixup | None = None,
        kept: torch.Tensor | None = None,
        packed: Packed | None = None,
        prompted: Prompted | None = None,
        has_losses: bool = False,
    ) -> tuple[torch.Tensor, ...]:
        """Embeddings of images and of captions, in training; with `has_losses`, the pairs' own losses after them.

        `mixup` mixes pixels, or features of captions before they have length 1; `kept`, int64 (n, k), are the patches
        that a ViT looks at; `packed` is how captions are packed, for a tower that `packs_captions`; `prompted` are
        tokens and mask of [p, q, y^m]. The losses are of reconstruction and of captions, each summed over the pairs,
        float32[2]; 0 without a decoder.
        """
        seen, states = images, None
        if mixup is not None and mixup.mixes == "images":
            seen = mixup.mixed(images)
        if isinstance(self.image_tower, VisionTower):
            states = self.image_tower.states(seen, kept)
            of_images = self.image_tower.pooled(states)
        else:
            of_images = self.image_tower(seen)
        of_texts = self.text_features(tokens, mask, packed)
        if mixup is not None and mixup.mixes == "texts":
            of_texts = mixup.mixed(of_texts)
        embeddings = _at_length_1(self.image_projection(of_images)), _at_length_1(of_texts)
        if not has_losses:
            return embeddings
        assert states is not None
        sums = [states.new_zeros((), dtype=torch.float32)] * 2  # after the embeddings: dropout draws the same for these
        if self.image_decoder is not None and kept is not None:
            sums[0] = self.image_decoder.losses(states, kept, images).sum()
        if self.captioner is not None and prompted is not None:
            assert isinstance(self.text_tower, BartTower)
            memory = self.captioner.memory(states[:, 1:], self.text_tower.states(*prompted), prompted[1])
            sums[1] = self.captioner.losses(self.text_tower.words, tokens, mask, *memory).sum()
        return *embeddings, torch.stack(sums)

    def checkpoint_activations(self) -> None:
        """Compute activations of both towers again instead of keeping them."""
        self.image_tower.set_grad_checkpointing()
        self.text_tower.set_grad_checkpointing()


class Classifier(nn.Module):
    """The image tower, and a linear layer from its features to logits (n, classes), float32 (ALIGN section 5.3).

    First weights depend on `seed` alone. A tower of another classifier's run brings its head along.
    """

    def __init__(self, image: ImageTowerSettings, *, classes: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.image_tower = image_tower_of(image)
            self.head = nn.Linear(self.image_tower.num_features, classes)
            nn.init.normal_(self.head.weight, std=_HEAD_STD)
            nn.init.zeros_(self.head.bias)
            if image.weights.startswith(OF_RUN):
                setting = "[image_tower] weights, the head"
                weights.read_layer_into(self.head, image.weights, setting=setting, prefix="head.", is_optional=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.image_tower(images)).float()

    def checkpoint_activations(self) -> None:
        """Compute activations of the tower again instead of keeping them."""
        self.image_tower.set_grad_checkpointing()


def image_tower_of(settings: ImageTowerSettings) -> ImageTower | VisionTower:
    """The tower that the settings describe, with its first weights."""
    return VisionTower(settings) if settings.is_vit else ImageTower(settings)


def part_of(name: str) -> Part:
    """The part of a dual encoder or a classifier that a parameter is of, by its name, wrapped (`module.…`) or not."""
    pieces = name.split(".")
    for part in PARTS:
        if part in pieces:
            return part
    raise ValueError(f"{name}: no parameter of a dual encoder")


def _linear(width: int, width_after: int, *, has_bias: bool = True) -> nn.Linear:
    """A linear layer as Keras starts it (COYO-ALIGN's): Glorot's uniform weights, a bias of 0; CLIP's have none."""
    layer = nn.Linear(width, width_after, bias=has_bias)
    nn.init.xavier_uniform_(layer.weight)
    if has_bias:
        nn.init.zeros_(layer.bias)
    return layer


def _from_run(layer: nn.Module, tower: ImageTowerSettings | TextTowerSettings, name: str) -> None:
    """Give the layer after a tower what it has in the run, or the published CLIP or SigLIP, that the tower is from.

    After a frozen one it is frozen too.
    """
    if tower.weights.startswith(OF_RUN) or (tower.weights and tower.family in ("clip", "siglip")):
        setting = f"[{name}_tower] weights, the layer after the tower"
        weights.read_layer_into(layer, tower.weights, setting=setting, prefix=f"{name}_projection.")
        layer.requires_grad_(requires_grad=not tower.frozen)


def _at_length_1(features: torch.Tensor) -> torch.Tensor:
    return functional.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)

"""A classifier: the image tower, and a linear layer from its features to classes (ALIGN section 5.3)."""

import torch
from torch import nn

from altalign.train.model.dual_encoder import image_tower_of
from altalign.train.run import weights
from altalign.train.settings.training import OF_RUN, ImageTowerSettings

_HEAD_STD = 0.01  # ours: the paper does not say how the layer begins


class Classifier(nn.Module):
    """Images, uint8 or floats from 0 to 255, (n, 3, height, width), to logits (n, classes), float32.

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
                weights.read_head_into(self.head, image.weights, setting="[image_tower] weights, the head")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.image_tower(images)).float()

    def checkpoint_activations(self) -> None:
        """Compute activations of the tower again instead of keeping them."""
        self.image_tower.set_grad_checkpointing()

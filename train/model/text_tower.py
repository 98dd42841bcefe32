"""BERT from scratch, and the [CLS] of its last layer (ALIGN section 5)."""

from typing import Self

import torch
from torch import nn
from transformers import BertConfig, BertModel

from altalign.train.model.bert_layer import Layer, Packed
from altalign.train.model.blocks import compute_again
from altalign.train.model.on_cpu import is_on_cpu
from altalign.train.run import weights
from altalign.train.settings.training import TextTowerSettings

FEED_FORWARD = 4  # times the width: BERT, section 3


class TextTower(nn.Module):
    """Maps tokens to the [CLS] of the last layer. Names of its state are those of transformers' BertModel."""

    def __init__(self, settings: TextTowerSettings, *, vocabulary: int, tokens_at_most: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=vocabulary,
            hidden_size=settings.width,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            intermediate_size=FEED_FORWARD * settings.width,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            max_position_embeddings=tokens_at_most,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        layers = self.bert.encoder.layer
        self.bert.encoder.layer = nn.ModuleList([Layer(layer, is_last=layer is layers[-1]) for layer in layers])
        self.num_features: int = settings.width
        self.frozen = settings.frozen
        if settings.weights:
            # ours and BERT's, open_clip's, AlignModel's
            prefixes = ("text_tower.", "bert.", "text.transformer.", "text_model.")
            unused = ("pooler.", "cls.", "embeddings.position_ids")
            weights.read_into(
                self.bert, settings.weights, setting="[text_tower] weights", prefixes=prefixes, unused=unused
            )
        if settings.frozen:
            self.requires_grad_(requires_grad=False).eval()

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """As torch's, but a frozen tower stays in evaluation: nothing is dropped."""
        return super().train(mode and not self.frozen)

    def set_grad_checkpointing(self, enable: bool = True) -> None:  # noqa: FBT001, FBT002 - timm's signature
        """Recompute each layer's activations instead of keeping them; transformers' switch changes with versions."""
        compute_again(self.bert.encoder.layer, enable=enable)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, packed: Packed | None = None) -> torch.Tensor:
        """Features (n, width) of tokens, int64 (n, length); `mask` is true where there is a token, [CLS] the first.

        `packed` is `Packed.of` that mask, for training; a CPU works it out by itself.
        """
        if packed is None and self.training and is_on_cpu(tokens) and not torch.compiler.is_compiling():
            packed = Packed.of(mask)
        places = None
        if packed is not None:
            tokens, places = tokens.flatten()[packed.places][None], packed.places[None] % tokens.shape[1]
        states = self.bert.embeddings(input_ids=tokens, position_ids=places)
        states = states if packed is None else states[0]
        for layer in self.bert.encoder.layer:
            states = layer(states, mask, packed)
        return states

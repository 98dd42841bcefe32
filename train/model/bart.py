"""BART's encoder as a text tower, and its decoder as NLIP's cross-modal decoder (arXiv 2212.07086, architecture).

Names of states are those of transformers' BartModel, less `encoder.` and `decoder.`; the decoder has no words of its
own, but those of the encoder, as in BART. Of a folder of BART both take their weights (its `final_logits_bias` is 0 as
published, and ours begins there).
"""

from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional
from transformers import BartConfig
from transformers.models.bart.modeling_bart import BartDecoder, BartEncoder

from altalign import storage
from altalign.errors import UsageError
from altalign.train.model.blocks import compute_again
from altalign.train.run import weights
from altalign.train.settings.nlip import CaptionerSettings
from altalign.train.settings.training import TextTowerSettings

FEED_FORWARD = 4  # times the width: BART, as BERT
_WORDS = "shared.weight"
_PUBLISHED = {"model_type": "bart", "activation_function": "gelu", "scale_embedding": False}


def _config(text: TextTowerSettings, *, vocabulary: int, positions: int, layers: int) -> BartConfig:
    return BartConfig(
        vocab_size=vocabulary,
        d_model=text.width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=text.heads,
        decoder_attention_heads=text.heads,
        encoder_ffn_dim=FEED_FORWARD * text.width,
        decoder_ffn_dim=FEED_FORWARD * text.width,
        dropout=text.dropout,
        attention_dropout=text.dropout,
        activation_dropout=0.0,
        max_position_embeddings=positions,
        pad_token_id=0,
        attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
    )


def _check_published(path: str, setting: str, **wanted: object) -> None:
    """Refuse a folder whose config.json says of its model what shapes of weights do not tell.

    Raises:
        UsageError: naming it.
    """
    facts = storage.read_json(storage.join(path, "config.json")) if storage.kind(path) == "folder" else {}
    for name, value in {**_PUBLISHED, **wanted}.items():
        if facts.get(name, value) != value:
            raise UsageError(
                f"{setting}: {path}: its config.json has {name} = {facts[name]!r}, where {value!r} is computed; give a "
                "folder of BART, or change the settings"
            )


class BartTower(nn.Module):
    """Maps tokens to the state of the first, [CLS] or <s>, after the last layer of BART's encoder.

    Attributes:
        num_features: width of the features.
    """

    def __init__(self, settings: TextTowerSettings, *, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.bart = BartEncoder(_config(settings, vocabulary=vocabulary, positions=positions, layers=settings.layers))
        self.bart.embed_tokens.padding_idx = None  # of BART's own vocabulary 0 is <s>; padding has no gradient anyhow
        self.num_features: int = settings.width
        self.frozen = settings.frozen
        if settings.weights:
            _check_published(settings.weights, "[text_tower] weights", encoder_attention_heads=settings.heads)
            renamed = {_WORDS: "embed_tokens.weight"}
            weights.read_into(
                self.bart,
                settings.weights,
                setting="[text_tower] weights",
                prefixes=("text_tower.bart.", "model."),
                unused=("decoder.", "final_logits_bias", "lm_head."),
                renamed=renamed | {f"encoder.{name}": name for name in self.bart.state_dict()},
            )
        if settings.frozen:
            self.requires_grad_(requires_grad=False).eval()

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """As torch's, but a frozen tower stays in evaluation: nothing is dropped."""
        return super().train(mode and not self.frozen)

    def set_grad_checkpointing(self, enable: bool = True) -> None:  # noqa: FBT001, FBT002 - timm's signature
        """Recompute each layer's activations instead of keeping them; transformers' switch changes with versions."""
        compute_again(self.bart.layers, enable=enable)

    @property
    def words(self) -> nn.Module:
        """The embedding of tokens, which the decoder has too."""
        return self.bart.embed_tokens

    def states(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The states of all tokens (n, length, width)."""
        attended = mask[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        return self.bart(input_ids=tokens, attention_mask=attended).last_hidden_state

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Features (n, width) of tokens, int64 (n, length); `mask` is true where there is a token."""
        return self.states(tokens, mask)[:, 0]


class Captioner(nn.Module):
    """NLIP's cross-modal decoder: from images and texts to captions, a token after the other."""

    def __init__(
        self, settings: CaptionerSettings, text: TextTowerSettings, *, vocabulary: int, positions: int, image_width: int
    ) -> None:
        super().__init__()
        config = _config(text, vocabulary=vocabulary, positions=positions, layers=settings.layers)
        decoder: Any = BartDecoder(config)
        decoder.embed_tokens = None  # the encoder's
        self.decoder = decoder
        self.of_images = nn.Linear(image_width, text.width)  # ours: widths of towers may differ
        self.bias = nn.Parameter(torch.zeros(vocabulary))  # BART's final_logits_bias
        nn.init.xavier_uniform_(self.of_images.weight)
        nn.init.zeros_(self.of_images.bias)
        if settings.weights:
            _check_published(settings.weights, "[captioner] weights", decoder_attention_heads=text.heads)
            weights.read_into(
                self.decoder,
                settings.weights,
                setting="[captioner] weights",
                prefixes=("captioner.", "model."),
                unused=(
                    "encoder.",
                    "decoder.embed_tokens.",
                    "final_logits_bias",
                    "lm_head.",
                    _WORDS,
                    "of_images.",
                    "bias",
                ),
                renamed={f"decoder.{name}": name for name in self.decoder.state_dict()},
            )

    def states(self, words: nn.Module, tokens: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States (n, length, width) of the first tokens of captions, each of which sees none after it.

        `memory` (n, places, width) is what is looked at besides, where `mask` (n, places) is true.
        """
        attended = mask[:, None, None, :].expand(-1, 1, tokens.shape[1], -1)
        return self.decoder(
            inputs_embeds=words(tokens), encoder_hidden_states=memory, encoder_attention_mask=attended, use_cache=False
        ).last_hidden_state

    def memory(
        self, images: torch.Tensor, texts: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[V_e(x), T_e(z)] of equation 13 and its mask: states of patches (n, p, w) before those of texts."""
        both = torch.cat([self.of_images(images), texts], 1)
        return both, torch.cat([mask.new_ones(images.shape[:2]), mask], 1)

    def logits(self, words: nn.Module, states: torch.Tensor) -> torch.Tensor:
        """Of every token of the vocabulary: (…, vocabulary)."""
        return functional.linear(states, words.weight, self.bias)  # type: ignore[arg-type]

    def losses(
        self, words: nn.Module, tokens: torch.Tensor, is_token: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Equation 13 for each caption (n,): the mean over its tokens after the first of -log p, float32."""
        states = self.states(words, tokens[:, :-1], memory, mask)
        logits = self.logits(words, states).float()
        of_tokens = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        is_asked = is_token[:, 1:]
        return (of_tokens * is_asked).sum(1) / is_asked.sum(1).clamp(min=1)

"""BERT from scratch, and the [CLS] of its last layer (ALIGN section 5); or BART, with NLIP's decoder of captions.

Names of states are those of transformers' BertModel, and of its BartModel less `encoder.` and `decoder.`. The decoder
has no words of its own, but those of the encoder, as in BART. Of a folder of BART both take their weights (its
`final_logits_bias` is 0 as published, and ours begins there).
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from timm.layers.create_act import get_act_layer
from timm.layers.norm import LayerNorm
from timm.models.vision_transformer import Block
from torch import nn
from torch.nn import functional
from transformers import BartConfig, BertConfig, BertModel
from transformers.models.bart.modeling_bart import BartDecoder, BartEncoder

from altalign import storage
from altalign.errors import UsageError
from altalign.train.model.blocks import Tower, compute_again, is_on_cpu
from altalign.train.run import weights
from altalign.train.settings.nlip import CaptionerSettings
from altalign.train.settings.training import TextTowerSettings

FEED_FORWARD = 4  # times the width: BERT, section 3, and BART
_PADDING = 1  # </s> of SigLIP's vocabulary, with which its captions are padded
_WORDS = "shared.weight"
_PUBLISHED = {"model_type": "bart", "activation_function": "gelu", "scale_embedding": False}
_OF_THE_ENCODER = ("encoder.", "decoder.embed_tokens.")

# BERT's layers are computed without what nobody reads: states of padding, and all but [CLS] of the last layer. In
# training the tokens of all captions stand in a row, and take their places where they look at each other. A GPU would
# wait for their number: places are worked out where the loader's mask is. A graph of the whole tower has the number for
# good: there captions are padded all the way.


class Packed(NamedTuple):
    """Captions of n x length tokens, with padding, as a row of those tokens that are there."""

    places: torch.Tensor  # of each token of the row, among n x length: int64
    firsts: torch.Tensor  # where captions begin in the row: int64 (n)

    @classmethod
    def from_mask(cls, mask: torch.Tensor) -> "Packed":
        """Where a mask (n, length) has tokens, the first of each caption among them."""
        ends = mask.sum(1).cumsum(0)
        return cls(mask.flatten().nonzero()[:, 0], functional.pad(ends[:-1], (1, 0)))

    def to(self, device: torch.device) -> "Packed":
        """The same on a device, to which it goes while other work goes on."""
        pinned = (one.pin_memory() if device.type == "cuda" and one.device.type == "cpu" else one for one in self)
        return Packed(*(one.to(device, non_blocking=True) for one in pinned))

    def spread(self, row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States (tokens, width) at their places (n, length, width), and zeros for padding."""
        return row.new_zeros(mask.numel(), row.shape[1]).index_copy_(0, self.places, row).unflatten(0, mask.shape)


def _attended(mask: torch.Tensor, queries: int) -> torch.Tensor:
    """What each of so many queries looks at, of a mask (n, places)."""
    return mask[:, None, None, :].expand(-1, 1, queries, -1)


class Layer(nn.Module):
    """A layer of transformers' BERT (its BertLayer), with the weights of that which it replaces, and their names."""

    def __init__(self, replaced: Any, *, is_last: bool) -> None:
        super().__init__()
        self.attention, self.intermediate, self.output = replaced.attention, replaced.intermediate, replaced.output
        self.is_last = is_last

    def forward(self, states: torch.Tensor, mask: torch.Tensor, packed: Packed | None) -> torch.Tensor:
        """States after the layer, (n, length, width) or of packed captions (tokens, width); of the last (n, width)."""
        asking = states
        if self.is_last:
            asking = states[:, :1] if packed is None else states.index_select(0, packed.firsts)[:, None]
        own = self.attention.self
        query, key, value = own.query(asking), own.key(states), own.value(states)
        if packed is not None:
            key, value = packed.spread(key, mask), packed.spread(value, mask)
            query = query if self.is_last else packed.spread(query, mask)
        by_head = [each.unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2) for each in (query, key, value)]
        dropout, looked_at = own.dropout.p if self.training else 0.0, _attended(mask, query.shape[1])
        seen = functional.scaled_dot_product_attention(*by_head, attn_mask=looked_at, dropout_p=dropout)
        seen = seen.transpose(1, 2).flatten(2)
        if packed is not None and not self.is_last:
            seen = seen.flatten(0, 1).index_select(0, packed.places)
        attended = self.attention.output(seen, asking)
        after = self.output(self.intermediate(attended), attended)
        return after[:, 0] if self.is_last else after


class TextTower(Tower):
    """Maps tokens to the [CLS] of the last layer. Names of its state are those of transformers' BertModel."""

    def __init__(self, settings: TextTowerSettings, *, vocabulary: int, positions: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=vocabulary,
            hidden_size=settings.width,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            intermediate_size=FEED_FORWARD * settings.width,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            max_position_embeddings=positions,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
        )
        self.bert = BertModel(config, add_pooling_layer=False)
        layers = self.bert.encoder.layer
        self.bert.encoder.layer = nn.ModuleList([Layer(layer, is_last=layer is layers[-1]) for layer in layers])
        self.num_features: int = settings.width
        # ours and BERT's, open_clip's, AlignModel's
        prefixes = ("text_tower.", "bert.", "text.transformer.", "text_model.")
        self.begin(settings, self.bert, prefixes=prefixes, unused=("pooler.", "cls.", "embeddings.position_ids"))

    def layers(self) -> list[nn.Module]:
        """The encoder's layers."""
        return list(self.bert.encoder.layer)

    def set_grad_checkpointing(self, enable: bool = True) -> None:  # noqa: FBT001, FBT002 - timm's signature
        """Recompute each layer's activations instead of keeping them; transformers' switch changes with versions."""
        compute_again(self.bert.encoder.layer, enable=enable)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor, packed: Packed | None = None) -> torch.Tensor:
        """Features (n, width) of tokens, int64 (n, length); `mask` is true where there is a token, [CLS] the first.

        `packed` is `Packed.from_mask` that mask, for training; a CPU works it out by itself.
        """
        if packed is None and self.training and is_on_cpu(tokens) and not torch.compiler.is_compiling():
            packed = Packed.from_mask(mask)
        places = None
        if packed is not None:
            tokens, places = tokens.flatten()[packed.places][None], packed.places[None] % tokens.shape[1]
        states = self.bert.embeddings(input_ids=tokens, position_ids=places)
        states = states if packed is None else states[0]
        for layer in self.bert.encoder.layer:
            states = layer(states, mask, packed)
        return states


# BART -----------------------------------------------------------------------------------------------------------------


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


def _check_published(path: str, setting: str, **computed: object) -> None:
    """Refuse a folder whose config.json says of its model what shapes of weights do not tell."""
    facts = storage.read_json(storage.join(path, "config.json")) if storage.kind(path) == "folder" else {}
    for name, value in {**_PUBLISHED, **computed}.items():
        if facts.get(name, value) != value:
            why = f"its config.json has {name} = {facts[name]!r}, where {value!r} is computed"
            raise UsageError(f"{setting}: {path}: {why}; give a folder of BART, or change the settings")


class BartTower(Tower):
    """Maps tokens to the state of the first, [CLS] or <s>, after the last layer of BART's encoder."""

    def __init__(self, settings: TextTowerSettings, *, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.bart = BartEncoder(_config(settings, vocabulary=vocabulary, positions=positions, layers=settings.layers))
        self.bart.embed_tokens.padding_idx = None  # of BART's own vocabulary 0 is <s>; padding has no gradient anyhow
        self.num_features: int = settings.width
        if settings.weights:
            _check_published(settings.weights, "[text_tower] weights", encoder_attention_heads=settings.heads)
        own = {f"encoder.{name}": name for name in self.bart.state_dict()}
        self.begin(
            settings,
            self.bart,
            prefixes=("text_tower.bart.", "model."),
            unused=("decoder.", "final_logits_bias", "lm_head."),
            renamed={_WORDS: "embed_tokens.weight"} | own,
        )

    def layers(self) -> list[nn.Module]:
        """The encoder's layers."""
        return list(self.bart.layers)

    def set_grad_checkpointing(self, enable: bool = True) -> None:  # noqa: FBT001, FBT002 - timm's signature
        """Recompute each layer's activations instead of keeping them; transformers' switch changes with versions."""
        compute_again(self.bart.layers, enable=enable)

    @property
    def words(self) -> nn.Module:
        """The embedding of tokens, which the decoder has too."""
        return self.bart.embed_tokens

    def states(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The states of all tokens (n, length, width)."""
        return self.bart(input_ids=tokens, attention_mask=_attended(mask, tokens.shape[1])).last_hidden_state

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Features (n, width) of tokens, int64 (n, length); `mask` is true where there is a token."""
        return self.states(tokens, mask)[:, 0]


# CLIP and SigLIP ------------------------------------------------------------------------------------------------------


class ClipTower(Tower):
    """Maps tokens to a state of the last of timm's blocks, after a norm.

    CLIP's (arXiv 2103.00020, section 2.4) is causal, and gives the state of a caption's last token. SigLIP's looks at
    padding too, and gives the state of the last of all places: captions are as long as `positions`.
    """

    after_layers = ("norm.",)

    def __init__(self, settings: TextTowerSettings, *, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.is_causal, width, depth = settings.architecture == "clip", settings.width, settings.layers
        made: dict[str, Any] = {
            "mlp_ratio": FEED_FORWARD,
            "qkv_bias": True,
            "attn_drop": settings.dropout,
            "proj_drop": settings.dropout,
            "norm_layer": partial(LayerNorm, eps=1e-5 if self.is_causal else 1e-6),
            "act_layer": get_act_layer(settings.activation),
        }
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.positional_embedding = nn.Parameter(torch.empty(positions, width))
        self.blocks = nn.ModuleList([Block(width, settings.heads, **made) for _ in range(depth)])
        self.norm = made["norm_layer"](width)
        self.num_features: int = width
        deviations = {"attn.qkv": width**-0.5, "attn.proj": (2 * depth * width) ** -0.5}  # of CLIP's code
        deviations |= {"mlp.fc1": (2 * width) ** -0.5, "mlp.fc2": (2 * depth * width) ** -0.5}
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        for block in self.blocks:
            for name, deviation in deviations.items():
                nn.init.normal_(block.get_parameter(f"{name}.weight"), std=deviation)
                nn.init.zeros_(block.get_parameter(f"{name}.bias"))
        if settings.weights:
            weights.check_published(settings.weights, "text", activation=settings.activation, heads=settings.heads)
        self.begin(settings, self, prefixes=("text_tower.",), unused=())

    def layers(self) -> list[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    def set_grad_checkpointing(self, enable: bool = True) -> None:  # noqa: FBT001, FBT002 - timm's signature
        """Recompute each block's activations instead of keeping them."""
        compute_again(self.blocks, enable=enable)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Features (n, width) of tokens, int64 (n, length); `mask` is true where there is a token."""
        if not self.is_causal:
            missing = len(self.positional_embedding) - tokens.shape[1]
            tokens = functional.pad(tokens.masked_fill(~mask, _PADDING), (0, missing), value=_PADDING)
        states = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[1]]
        for block in self.blocks:
            states = block(states, is_causal=self.is_causal)
        if not self.is_causal:
            return self.norm(states[:, -1])
        last = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, states.shape[2])
        return self.norm(states.gather(1, last)[:, 0])


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
                unused=(*_OF_THE_ENCODER, _WORDS, "final_logits_bias", "lm_head.", "of_images.", "bias"),
                renamed={f"decoder.{name}": name for name in self.decoder.state_dict()},
            )

    def states(self, words: nn.Module, tokens: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """States (n, length, width) of the first tokens of captions, each of which sees none after it.

        `memory` (n, places, width) is what is looked at besides, where `mask` (n, places) is true.
        """
        seen = {"encoder_hidden_states": memory, "encoder_attention_mask": _attended(mask, tokens.shape[1])}
        return self.decoder(inputs_embeds=words(tokens), use_cache=False, **seen).last_hidden_state

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
        is_scored = is_token[:, 1:]
        return (of_tokens * is_scored).sum(1) / is_scored.sum(1).clamp(min=1)

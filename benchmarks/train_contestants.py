"""Contestants whose training steps are compared: altalign's, open_clip's, Hugging Face AlignModel's.

They have the same towers and the same batch: an EfficientNet or a ViT, and BERT. AlignModel has EfficientNets alone.

A step is forward, loss, backward, optimiser; images and captions are in the device's memory. What differs is theirs:
open_clip keeps the 1x1 convolution of EfficientNet's head, AlignModel's embeddings are as wide as its image tower's
features; both have batch norm over the batch and no label smoothing. All are given the same captions, padded alike;
altalign computes nothing for padding on a CPU. Neither trainer of theirs knows channels last: they are measured without
it, as they come, and with it.
"""

import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from timm.models.efficientnet import round_channels  # pyright: ignore[reportPrivateImportUsage]

from altalign.train.data.batches import Batch
from altalign.train.model.image_tower import FACTORS
from altalign.train.run.ranks import Ranks
from altalign.train.settings.training import TrainConfig
from altalign.train.step.learner import Learner

TEXT = {"mini": (4, 256, 4), "base": (12, 768, 12), "large": (24, 1024, 16)}  # layers, width, heads
VITS = {"ti": "tiny", "s": "small", "b": "base", "l": "large"}  # as timm names what we call vit_b16
LAST_CHANNELS = 320  # of EfficientNet-B0's blocks
SHORTEST = 6  # word pieces of a caption
RATE, DECAY = 1e-3, 1e-5  # of the peers' AdamW; ours is LAMB by its own schedule, which costs nothing


@dataclass(frozen=True)
class Sizes:
    """Sizes of models, batches and inputs."""

    model: str  # b3-mini: EfficientNet-B3 and BERT-Mini
    px: int
    tokens: int  # of the longest caption, to which all contestants pad
    vocabulary: int
    embeddings: int  # their width

    @property
    def architecture(self) -> str:
        """EfficientNet's."""
        return self.model.split("-")[0]

    @property
    def is_vit(self) -> bool:
        """Whether the image tower is a ViT."""
        return self.architecture.startswith("vit_")

    @property
    def features(self) -> int:
        """Width of an EfficientNet's features."""
        return round_channels(LAST_CHANNELS, FACTORS[self.architecture][0])

    @property
    def text(self) -> tuple[int, int, int]:
        """BERT's layers, width and heads."""
        return TEXT[self.model.split("-")[1]]


@dataclass(frozen=True)
class Way:
    """How a contestant is trained: on which device, in which precision, by which method."""

    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    compiled: bool = False  # ours block by block, the peers as a whole, as open_clip's trainer does it
    graphs: bool = False  # ours: passes of the image tower are recorded as CUDA graphs
    channels_last: bool = False  # the peers; ours always

    def autocast(self) -> Any:
        """The arithmetic of the towers, for the peers."""
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.precision == "bfloat16")


@dataclass(frozen=True)
class Contestant:
    """A model, and a step of it, which returns the loss."""

    model: torch.nn.Module
    step: Callable[[], float]


def ours(sizes: Sizes, way: Way, batch: int, *, batch_norm: str = "ghost", chunk: int = 0) -> Contestant:
    """Altalign's, as the loop takes it."""
    layers, width, heads = sizes.text
    of_tower = (
        {"positions_px": sizes.px}
        if sizes.is_vit
        else {"batch_norm": batch_norm, "ghost_group": min(16, chunk or batch)}
    )
    values = {
        "data": {"resize_px": sizes.px, "crop_px": sizes.px},
        "evaluation": {"crop_px": sizes.px},
        "image_tower": {"architecture": sizes.architecture, "embedding_width": sizes.embeddings, **of_tower},
        "text_tower": {"layers": layers, "width": width, "heads": heads},
        "tokenizer": {"tokens_at_most": sizes.tokens},
        "loop": {
            "global_batch": batch,
            "chunk": chunk or batch,
            "speed": "compiled" if way.compiled else "recorded" if way.graphs else "plain",
            "precision": way.precision,
        },
    }
    ranks = Ranks(0, 1, torch.device(way.device))
    with ranks.device:  # which draws first weights faster than a CPU
        learner = Learner(TrainConfig.from_values(values, where="benchmark"), vocabulary=sizes.vocabulary, ranks=ranks)
    held, steps = batch_of(sizes, batch, way.device), itertools.count(1)
    held = replace(held, tokens=held.tokens.cpu(), mask=held.mask.cpu())  # as the loader gives them
    return Contestant(learner.model, lambda: learner.step(next(steps), held)["loss"])


def open_clip(sizes: Sizes, way: Way, batch: int, *, accumulate: int = 1) -> Contestant:
    """open_clip's CustomTextCLIP of timm's EfficientNet and transformers' BERT, and its loss.

    Accumulation is as its trainer does it.
    """
    from open_clip.loss import ClipLoss  # pyright: ignore[reportMissingImports]

    with torch.device(way.device):
        model = _open_clip_model(sizes, way.device)
    forward, optimizer = _ready(model, way)
    criterion, (images, tokens, _) = ClipLoss(), peer_inputs(sizes, way, batch // accumulate)

    def encoded() -> tuple[Any, Any, Any]:
        with way.autocast():
            found = forward(images, tokens)
        return (
            found[:3]
            if isinstance(found, tuple)
            else (found["image_features"], found["text_features"], found["logit_scale"])
        )

    def loss_of(*embeddings_and_scale: Any) -> torch.Tensor:
        with way.autocast():
            return criterion(*embeddings_and_scale)

    def step() -> float:
        loss = torch.empty(())
        optimizer.zero_grad(set_to_none=True)
        kept: list[tuple[Any, ...]] = []
        if accumulate > 1:
            with torch.no_grad():
                kept = [encoded()[:2] for _ in range(accumulate)]
        for number in range(accumulate):
            *own, scale = encoded()
            both = [
                torch.cat([*(k[side] for k in kept[:number]), own[side], *(k[side] for k in kept[number + 1 :])])
                if kept
                else own[side]
                for side in (0, 1)
            ]
            loss = loss_of(*both, scale)
            loss.backward()
        optimizer.step()
        return loss.item()

    return Contestant(model, step)


def _open_clip_model(sizes: Sizes, device: str) -> Any:
    import open_clip as library  # pyright: ignore[reportMissingImports]
    from transformers import BertConfig

    name = f"benchmark-{sizes.model}"
    with tempfile.TemporaryDirectory() as folder:
        BertConfig(**_bert(sizes)).save_pretrained(folder)
        name_and_pool = (
            {
                "timm_model_name": f"vit_{VITS[sizes.architecture[4:-2]]}_patch{sizes.architecture[-2:]}_224",
                "timm_pool": "token",
            }
            if sizes.is_vit
            else {"timm_model_name": f"tf_efficientnet_{sizes.architecture}", "timm_pool": "avg"}
        )
        vision = {"timm_model_pretrained": False, "timm_proj": "linear", **name_and_pool}
        text = {
            "hf_model_name": folder,
            "hf_model_pretrained": False,
            "hf_proj_type": "linear",
            "hf_pooler_type": "cls_last_hidden_state_pooler",
        }
        config = {
            "embed_dim": sizes.embeddings,
            "init_logit_scale": 0.0,
            "vision_cfg": {**vision, "image_size": sizes.px},
            "text_cfg": {**text, "vocab_size": sizes.vocabulary, "context_length": sizes.tokens},
        }
        Path(folder, f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
        library.add_model_config(Path(folder, f"{name}.json"))
        return library.create_model(name, device=device, pretrained_text=False)


def align_model(sizes: Sizes, way: Way, batch: int) -> Contestant:
    """Hugging Face's AlignModel, and its loss."""
    from transformers import AlignConfig, AlignModel

    (channels, blocks), features = FACTORS[sizes.architecture], sizes.features
    pool = max(features, sizes.px)  # `hidden_dim` is the side of its pooling: not less than the map's
    vision = {
        "width_coefficient": channels,
        "depth_coefficient": blocks,
        "image_size": sizes.px,
        "hidden_dim": pool,
        "drop_connect_rate": 0.0,
    }
    with torch.device(way.device):
        model: Any = AlignModel(AlignConfig(text_config=_bert(sizes), vision_config=vision, projection_dim=features))
    forward, optimizer = _ready(model, way)
    images, tokens, mask = peer_inputs(sizes, way, batch)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with way.autocast():
            loss = forward(input_ids=tokens, attention_mask=mask, pixel_values=images, return_loss=True).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return Contestant(model, step)


PEERS: dict[str, Callable[..., Contestant]] = {"open_clip": open_clip, "AlignModel": align_model}


def batch_of(sizes: Sizes, pairs: int, device: str) -> Batch:
    """Random pairs in a device's memory, the same on each device of a kind.

    Captions have `SHORTEST` to `tokens` word pieces.
    """
    generator = torch.Generator(device).manual_seed(0)
    lengths = torch.randint(SHORTEST, sizes.tokens + 1, (pairs, 1), generator=generator, device=device)
    lengths[0] = sizes.tokens
    mask = torch.arange(sizes.tokens, device=device) < lengths
    tokens = torch.randint(5, sizes.vocabulary, (pairs, sizes.tokens), generator=generator, device=device) * mask
    images = (
        torch.empty(pairs, sizes.px, sizes.px, 3, dtype=torch.uint8, device=device)
        .random_(0, 256, generator=generator)
        .permute(0, 3, 1, 2)
    )
    return Batch(
        [f"{number:032x}" for number in range(pairs)], ["benchmark"] * pairs, [0] * pairs, images, tokens, mask
    )


def peer_inputs(sizes: Sizes, way: Way, pairs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the peers' loaders give: floats from -1 to 1, and captions as wide as ours."""
    held = batch_of(sizes, pairs, way.device)
    images = (held.images.float() / 127.5 - 1).contiguous(
        memory_format=torch.channels_last if way.channels_last else torch.contiguous_format
    )
    return images, held.tokens, held.mask.long()


def _bert(sizes: Sizes) -> dict[str, Any]:
    """BERT's sizes as transformers names them."""
    layers, width, heads = sizes.text
    towers = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }
    return {**towers, "vocab_size": sizes.vocabulary, "max_position_embeddings": sizes.tokens, "pad_token_id": 0}


def _ready(model: Any, way: Way) -> tuple[Any, torch.optim.Optimizer]:
    """A peer's model on its device, as what is called in a step, and its optimiser."""
    model.to(way.device, memory_format=torch.channels_last if way.channels_last else torch.preserve_format).train()
    forward = torch.compile(model) if way.compiled else model
    return forward, torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)

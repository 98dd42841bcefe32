"""One contestant's training steps: forward, loss, backward, optimiser, on random images and tokens that are in memory. Prints a line of JSON.

All have EfficientNet-B0, BERT-Mini, embeddings of B0's 320 numbers, dropout 0.1, LAMB, float32, and captions of as many tokens. What differs is theirs:
open_clip keeps the 1x1 convolution of B0's head and has no label smoothing; the peers' batch norm is over the batch, ours over groups of 16 unless said.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCABULARY = 30_522  # BERT's
WIDTH = 320  # of the embeddings
TEXT = {"layers": 4, "width": 256, "heads": 4}  # BERT-Mini
WARM_UP = 2  # steps


@dataclass(frozen=True)
class Inputs:
    """A batch: pixels from 0 to 255 (n, 3, px, px), tokens and mask (n, length)."""

    images: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class Contestant:
    """A model, and a step of it."""

    model: nn.Module
    step: Callable[[], float]  # returns the loss


def ours(inputs: Inputs, batch_norm: str = "ghost") -> Contestant:
    """Altalign's."""
    from train.loss import contrastive_loss
    from train.model import DualEncoder
    from train.optimizers import make_optimizer
    from train.settings import ImageTowerSettings, OptimizerSettings, TextTowerSettings

    image = ImageTowerSettings.from_values({"architecture": "b0", "embedding_width": WIDTH, "batch_norm": batch_norm}, where="benchmark")
    length = inputs.tokens.shape[1]
    model = DualEncoder(image, TextTowerSettings.from_values(TEXT, where="benchmark"), vocabulary=VOCABULARY, tokens_at_most=length)
    optimizer = make_optimizer(model, OptimizerSettings())
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    images = inputs.images.contiguous(memory_format=torch.channels_last)

    def loss() -> torch.Tensor:
        found = model(images, inputs.tokens, inputs.mask)
        return contrastive_loss(*found, model.temperature.value(), label_smoothing=0.1, directions="sum")

    return Contestant(model, _step(model, optimizer, loss))


def open_clip(inputs: Inputs) -> Contestant:
    """open_clip's CustomTextCLIP of timm's EfficientNet and transformers' BERT."""
    import open_clip
    from open_clip.loss import ClipLoss
    from transformers import BertConfig

    with tempfile.TemporaryDirectory() as folder:
        BertConfig(vocab_size=VOCABULARY, **_bert(inputs)).save_pretrained(folder)
        vision = {"timm_model_name": "tf_efficientnet_b0", "timm_model_pretrained": False, "timm_pool": "avg", "timm_proj": "linear"}
        pooler = "cls_last_hidden_state_pooler"
        text = {"hf_model_name": folder, "hf_model_pretrained": False, "hf_proj_type": "linear", "hf_pooler_type": pooler}
        config = {
            "embed_dim": WIDTH,
            "init_logit_scale": 0.0,
            "vision_cfg": {**vision, "image_size": inputs.images.shape[-1]},
            "text_cfg": {**text, "vocab_size": VOCABULARY, "context_length": inputs.tokens.shape[1]},
        }
        Path(folder, "benchmark-b0.json").write_text(json.dumps(config), encoding="utf-8")
        open_clip.add_model_config(Path(folder, "benchmark-b0.json"))
        model: Any = open_clip.create_model("benchmark-b0", pretrained_text=False)
    images, criterion = _scaled(inputs.images), ClipLoss()

    def loss() -> torch.Tensor:
        found = model(images, inputs.tokens)
        return criterion(*found[:3]) if isinstance(found, tuple) else criterion(found["image_features"], found["text_features"], found["logit_scale"])

    return Contestant(model, _step(model, _timm_lamb(model), loss))


def align_model(inputs: Inputs) -> Contestant:
    """Hugging Face's AlignModel."""
    from transformers import AlignConfig, AlignModel

    vision = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": inputs.images.shape[-1], "hidden_dim": WIDTH, "drop_connect_rate": 0.0}
    model = AlignModel(AlignConfig(text_config={"vocab_size": VOCABULARY, **_bert(inputs)}, vision_config=vision, projection_dim=WIDTH))
    images, mask = _scaled(inputs.images), inputs.mask.long()

    def loss() -> torch.Tensor:
        return model(input_ids=inputs.tokens, attention_mask=mask, pixel_values=images, return_loss=True).loss

    return Contestant(model, _step(model, _timm_lamb(model), loss))


CONTESTANTS: dict[str, Callable[[Inputs], Contestant]] = {
    "altalign": ours,
    "altalign, batch norm over the batch": lambda inputs: ours(inputs, "local"),
    "open_clip": open_clip,
    "AlignModel": align_model,
}


def inputs_of(batch: int, px: int, tokens: int) -> Inputs:
    """A batch; captions are from a half of the tokens to all of them."""
    torch.manual_seed(0)
    lengths = torch.randint(tokens // 2, tokens + 1, (batch, 1))
    lengths[0] = tokens
    mask = torch.arange(tokens) < lengths
    return Inputs(torch.randint(0, 256, (batch, 3, px, px), dtype=torch.uint8), torch.randint(5, VOCABULARY, (batch, tokens)) * mask, mask)


def _bert(inputs: Inputs) -> dict[str, int]:
    width = TEXT["width"]
    sizes = {"hidden_size": width, "num_hidden_layers": TEXT["layers"], "num_attention_heads": TEXT["heads"], "intermediate_size": 4 * width}
    return {**sizes, "max_position_embeddings": inputs.tokens.shape[1], "pad_token_id": 0}


def _scaled(images: torch.Tensor) -> torch.Tensor:
    """Pixels as the peers are given them, ready made: floats from -1 to 1."""
    return images.float() / 127.5 - 1


def _timm_lamb(model: nn.Module) -> torch.optim.Optimizer:
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=1e-5, eps=1e-6)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> Callable[[], float]:
    model.train()

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        found = loss()
        found.backward()
        optimizer.step()
        return found.item()

    return step


def main() -> int:
    """Time steps of one contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CONTESTANTS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--px", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    contestant = CONTESTANTS[arguments.name](inputs_of(arguments.batch, arguments.px, arguments.tokens))
    seconds, losses, cpu = [], [], []
    for _ in range(WARM_UP + arguments.steps):
        began, began_cpu = time.perf_counter(), time.process_time()
        losses.append(contestant.step())
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - began_cpu)
    step_s, step_cpu_s = statistics.median(seconds[WARM_UP:]), statistics.median(cpu[WARM_UP:])
    figures = {
        "samples_per_s": arguments.batch / step_s,
        "samples_per_cpu_s": arguments.batch / step_cpu_s,
        "step_s": step_s,
        "parameters": sum(parameter.numel() for parameter in contestant.model.parameters()),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

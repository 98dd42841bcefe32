"""Training steps on one GPU, beside open_clip's and Hugging Face AlignModel's: samples a second, peak memory, share of the GPU's peak arithmetic.

    python3 -m benchmarks.train_gpu [--models b3-mini b5-base b7-base] [--parts sizes peers "compiled peers" global] [--seconds 500] [--out FILE]

Runs on any torch from 2.11 that sees a CUDA GPU, without uv or network. Images of 289 pixels and captions are in the GPU's memory; a step is forward,
loss, backward, optimiser. Captions have up to 32 word pieces, and the peers are given 64, to which they pad; ours are padded to their batch's longest.
"""

import argparse
import gc
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

PX, TOKENS, TOKENS_AT_MOST, VOCABULARY = 289, 32, 64, 100_000
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16, of the makers' data sheets
TEXT = {"mini": (4, 256, 4), "base": (12, 768, 12), "large": (24, 1024, 16)}  # layers, width, heads
IMAGE = {"b3": (1.2, 1.4, 384), "b5": (1.6, 2.2, 512), "b7": (2.0, 3.1, 640)}  # factors of channels and blocks, width of the features
BATCHES = {"b3-mini": (256, 512, 1024), "b5-base": (128, 256, 384), "b7-base": (64, 128, 192)}  # the middle one beside peers
PARTS = ("sizes", "peers", "compiled peers", "global")
GLOBAL = 16_384  # pairs of ALIGN's batch
WARM_UP, STEPS = 3, 8


@dataclass(frozen=True)
class Contestant:
    """A model, and a step of it on a batch of a size."""

    model: Any
    step: Callable[[], float]


def ours(name: str, batch: int, *, compiled: bool = False, batch_norm: str = "ghost", tokens: int = TOKENS, chunk: int = 0) -> Contestant:
    """Altalign's step, as the loop takes it."""
    from train.learner import Learner
    from train.ranks import Ranks
    from train.settings import TrainConfig

    layers, width, heads = TEXT[name.split("-")[1]]
    values = {
        "image_tower": {"architecture": name.split("-")[0], "embedding_width": 640, "batch_norm": batch_norm},
        "text_tower": {"layers": layers, "width": width, "heads": heads},
        "loop": {"global_batch": batch, "chunk": chunk or batch, "compile": compiled},
        "loss": {"block": 8192},
    }
    learner = Learner(TrainConfig.from_values(values, where="benchmark"), vocabulary=VOCABULARY, ranks=Ranks(0, 1, torch.device("cuda")))
    held = batch_of(batch, tokens)
    steps = itertools.count(1)
    return Contestant(learner.model, lambda: learner.step(next(steps), held)["loss"])


def batch_of(pairs: int, tokens: int) -> Any:
    """Random pairs, in the GPU's memory."""
    from train.batches import Batch

    generator = torch.Generator("cuda").manual_seed(0)
    lengths = torch.randint(6, tokens + 1, (pairs, 1), generator=generator, device="cuda")
    lengths[0] = tokens
    mask = torch.arange(tokens, device="cuda") < lengths
    ids = torch.randint(5, VOCABULARY, (pairs, tokens), generator=generator, device="cuda") * mask
    images = torch.empty(pairs, PX, PX, 3, dtype=torch.uint8, device="cuda").random_(0, 256, generator=generator).permute(0, 3, 1, 2)
    return Batch([f"{number:032x}" for number in range(pairs)], ["benchmark"] * pairs, [0] * pairs, images, ids, mask)


def bert(name: str) -> dict[str, int]:
    """BERT's sizes as transformers names them."""
    layers, width, heads = TEXT[name.split("-")[1]]
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * width, "vocab_size": VOCABULARY}


def open_clip(name: str, batch: int, *, compiled: bool = False, accumulate: int = 1) -> Contestant:
    """open_clip's CustomTextCLIP of timm's EfficientNet and transformers' BERT, its loss, bfloat16, AdamW; accumulation as its trainer does it."""
    import open_clip as library
    from open_clip.loss import ClipLoss
    from transformers import BertConfig

    with tempfile.TemporaryDirectory() as folder:
        BertConfig(**bert(name), max_position_embeddings=TOKENS_AT_MOST).save_pretrained(folder)
        vision = {"timm_model_name": f"tf_efficientnet_{name.split('-')[0]}", "timm_model_pretrained": False, "timm_pool": "avg", "timm_proj": "linear"}
        text = {"hf_model_name": folder, "hf_model_pretrained": False, "hf_proj_type": "linear", "hf_pooler_type": "cls_last_hidden_state_pooler"}
        config = {
            "embed_dim": 640,
            "init_logit_scale": 0.0,
            "vision_cfg": {**vision, "image_size": PX},
            "text_cfg": {**text, "vocab_size": VOCABULARY, "context_length": TOKENS_AT_MOST},
        }
        Path(folder, f"benchmark-{name}.json").write_text(json.dumps(config), encoding="utf-8")
        library.add_model_config(Path(folder, f"benchmark-{name}.json"))
        model: Any = library.create_model(f"benchmark-{name}", pretrained_text=False).cuda().train()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    criterion, chunk = ClipLoss(), batch // accumulate
    images, tokens, _ = peer_inputs(chunk)

    def encoded() -> tuple[Any, Any, Any]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            found = forward(images, tokens)
        return found[:3] if isinstance(found, tuple) else (found["image_features"], found["text_features"], found["logit_scale"])

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        if accumulate == 1:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(*encoded())
            loss.backward()
        else:
            with torch.no_grad():
                kept = [encoded()[:2] for _ in range(accumulate)]
            for number in range(accumulate):
                *features, scale = encoded()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    both = [torch.cat([*(k[side] for k in kept[:number]), features[side], *(k[side] for k in kept[number + 1 :])]) for side in (0, 1)]
                    loss = criterion(*both, scale)
                loss.backward()
        optimizer.step()
        return float(loss)

    return Contestant(model, step)


def align_model(name: str, batch: int, *, compiled: bool = False) -> Contestant:
    """Hugging Face's AlignModel, its loss, bfloat16, AdamW."""
    from transformers import AlignConfig, AlignModel

    channels, blocks, features = IMAGE[name.split("-")[0]]
    vision = {"width_coefficient": channels, "depth_coefficient": blocks, "image_size": PX, "hidden_dim": features, "drop_connect_rate": 0.0}
    text = {**bert(name), "max_position_embeddings": TOKENS_AT_MOST, "pad_token_id": 0}
    model: Any = AlignModel(AlignConfig(text_config=text, vision_config=vision, projection_dim=features)).cuda().train()
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    images, tokens, mask = peer_inputs(batch)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = forward(input_ids=tokens, attention_mask=mask, pixel_values=images, return_loss=True).loss
        loss.backward()
        optimizer.step()
        return float(loss)

    return Contestant(model, step)


def peer_inputs(pairs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the peers' loaders give: floats, and captions padded to the longest that there may be."""
    held = batch_of(pairs, TOKENS)
    padding = (0, TOKENS_AT_MOST - TOKENS)
    return held.images.float() / 127.5 - 1, torch.nn.functional.pad(held.tokens, padding), torch.nn.functional.pad(held.mask, padding).long()


def measured(made: Callable[[], Contestant], batch: int, *, steps: int = STEPS, warm_up: int = WARM_UP) -> dict[str, Any]:
    """Samples a second (median and range of steps), and peak memory; the reason where it does not fit."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    try:
        contestant = made()
        for _ in range(warm_up):
            loss = contestant.step()
        first_s = time.perf_counter() - began
        seconds = []
        for _ in range(steps):
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = contestant.step()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    except torch.OutOfMemoryError:
        return {"batch": batch, "error": "out of memory"}
    rates = sorted(batch / one for one in seconds)
    return {
        "batch": batch,
        "samples_per_s": statistics.median(rates),
        "range": [rates[0], rates[-1]],
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "loss": loss,
        "start_s": first_s,
        "parameters": sum(parameter.numel() for parameter in contestant.model.parameters()),
    }


def flops_of_a_sample(name: str) -> float:
    """Arithmetic of the towers' forward and backward for a pair, convolutions and products of matrices, as torch counts it."""
    from torch.utils.flop_counter import FlopCounterMode

    contestant = ours(name, 16)
    with FlopCounterMode(display=False) as counter:
        contestant.step()
    return counter.get_total_flops() / 16


def plan(models: list[str], parts: list[str]) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What is measured, in order, by its name."""
    for name in models:
        small, middle, large = BATCHES[name]
        if "sizes" in parts:
            for batch in (small, middle, large):
                yield f"{name} altalign {batch}", partial(measured, partial(ours, name, batch), batch)
            yield f"{name} altalign, batch norm over the batch, {middle}", partial(measured, partial(ours, name, middle, batch_norm="local"), middle)
            for batch in (middle, large):
                yield f"{name} altalign, compiled, {batch}", partial(measured, partial(ours, name, batch, compiled=True), batch)
        if "peers" in parts:
            for peer, made in (("open_clip", open_clip), ("AlignModel", align_model)):
                yield f"{name} {peer} {middle}", partial(measured, partial(made, name, middle), middle)
        if "compiled peers" in parts:
            yield f"{name} open_clip, compiled, {middle}", partial(measured, partial(open_clip, name, middle, compiled=True), middle)
        if "global" in parts:
            measure = partial(measured, steps=1, warm_up=1)
            yield f"{name} altalign, global batch {GLOBAL:,}", partial(measure, partial(ours, name, GLOBAL, chunk=middle), GLOBAL)
            yield f"{name} open_clip, global batch {GLOBAL:,}", partial(measure, partial(open_clip, name, GLOBAL, accumulate=GLOBAL // middle), GLOBAL)


def main() -> int:
    """Measure until the time is up; prints a table, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["b3-mini", "b5-base", "b7-base"])
    parser.add_argument("--parts", nargs="*", default=["sizes", "peers", "global"], choices=PARTS)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.cuda.get_device_name()
    found: dict[str, Any] = {"device": device, "torch": torch.__version__, "results": {}}
    peak = next((flops for name, flops in PEAK_FLOPS.items() if name in device), None)
    flops = {}
    for name in arguments.models:
        flops[name] = flops_of_a_sample(name)
        print(f"{name}: {flops[name] / 1e9:.1f} GFLOP a pair", flush=True)
    found["flops"] = flops
    began = time.perf_counter()
    for title, measure in plan(arguments.models, arguments.parts):
        if time.perf_counter() - began > arguments.seconds:
            print(f"{title}: not measured, the time is up", flush=True)
            continue
        try:
            result = measure()
        except Exception as error:  # what one contestant cannot do, the others are measured all the same
            result = {"error": f"{type(error).__name__}: {error}"[:300]}
        if "samples_per_s" in result and peak:
            result["utilisation"] = result["samples_per_s"] * flops[title.split()[0]] / peak
        found["results"][title] = result
        shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in result.items() if key not in ("range", "parameters")}
        print(f"{title}: {shown}", flush=True)
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`altalign export RUN DIR --to …`: a trained model as other libraries open it, opened again there and compared."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from altalign import storage, terminal
from altalign.errors import AltalignError, UsageError, bring
from altalign.train.data.batches import padded
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.exchange import card, encoders, to_align, to_onnx, to_open_clip, to_timm
from altalign.train.exchange.encoders import Trained
from altalign.train.exchange.libraries import quiet
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.settings.training import TrainConfig

TARGETS: dict[str, ModuleType] = {"align": to_align, "open_clip": to_open_clip, "onnx": to_onnx, "timm": to_timm}
_CAPTIONS = 8  # that are compared


def export(run: str, folder: str, *, to: str, step: int | None, overrides: Mapping[str, object]) -> int:
    """Write a checkpoint's model, open it again and compare; nothing stays where it differs.

    Args:
        run: the folder of a training run.
        folder: a new one.
        to: one of `TARGETS`.
        step: the checkpoint; None: the newest.
        overrides: of `[evaluation]`, the sizes of its images.

    Raises:
        UsageError: the form cannot hold this model, a package is missing, or `folder` is there, or in a store.
        AltalignError: what was written does not compute what the model does: a defect of ours, or of the library.
    """
    if storage.is_remote(folder):
        raise UsageError(f"{folder}: other libraries write to a disk alone; give a local folder, and copy it there")
    if storage.kind(folder) != "missing":
        raise UsageError(f"{folder}: it is there already; give a new folder")
    of, target = encoders.trained(run, step=step, evaluation=overrides), TARGETS[to]
    target.check(of)
    if find_spec(target.PACKAGE) is None:
        raise UsageError(
            f"--to {to}: what is written is opened by the package {target.PACKAGE}, which is missing; {bring(to)}"
        )
    place = Path(folder)
    try:
        place.mkdir(parents=True)
        with quiet():
            notes = target.write(of, place)
            differences = _differences(of, target.reopen(of, place))
        worst = max(differences.values())
        if not worst <= target.TOLERANCE:
            raise AltalignError(
                f"--to {to}: opened again, embeddings differ by {worst:.2g}, more than {target.TOLERANCE:g}; "
                "please report it"
            )
        card.write(of, place, to=to, differences=differences, notes=notes)
    except BaseException:
        storage.delete(folder)
        raise
    out = terminal.stdout()
    said = ", ".join(f"{what} {apart:.1e}" for what, apart in differences.items())
    out.print(f"{terminal.shown(folder)}: step {of.step:,}, opened again; largest difference of {said}", soft_wrap=True)
    for note in notes:
        out.print(f"- {note}", soft_wrap=True)
    return 0


def foreseen(config: TrainConfig, model: DualEncoder) -> dict[str, str]:
    """Why a form cannot hold a model that is to be trained, by the forms; empty where it can."""
    of, found = Trained(Path(), 0, config, cast(CaptionTokenizer, None), model), {}  # no check asks for the tokenizer
    for to, target in TARGETS.items():
        try:
            found[to] = target.check(of) or ""
        except UsageError as error:
            found[to] = str(error).removeprefix(f"{config.run.folder}: ")
    return found


@torch.no_grad()
def _differences(of: Trained, again: Any) -> dict[str, float]:
    """The largest difference of a number of an embedding, of images and of captions."""
    pixels = _pixels(of.evaluation_sizes[1])
    found = {"images": _apart(of.model.encode_image(pixels), again.encode_image(pixels))}
    if again.encode_text is not None:
        captions = _captions(of)
        tokens, mask = padded(of.tokenizer.encode(captions), of.tokenizer.tokens_at_most)
        found["captions"] = _apart(of.model.encode_text(tokens, mask), again.encode_text(captions))
    return found


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max()) if ours.shape == theirs.shape else float("nan")


def _pixels(px: int) -> Tensor:
    """Smooth pictures, noise, black and white: uint8 (4, 3, px, px)."""
    generator = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(
        torch.rand(1, 3, 4, 4, generator=generator), (px, px), mode="bilinear", align_corners=False
    )
    noise = torch.rand(1, 3, px, px, generator=generator)
    half = torch.ones(1, 3, px, px)
    half[..., : px // 2] = 0
    return (torch.cat([smooth, noise, half, smooth * noise]) * 255).to(torch.uint8)


def _captions(of: Trained) -> list[str]:
    """Captions of the vocabulary's own words, of many lengths; the last is longer than the model takes."""
    words = of.tokenizer.words()
    drawn = torch.randint(
        len(words), (_CAPTIONS, of.tokenizer.tokens_at_most), generator=torch.Generator().manual_seed(0)
    )
    lengths = [1 + number * of.tokenizer.tokens_at_most // (_CAPTIONS - 1) for number in range(_CAPTIONS)]
    return [" ".join(words[place] for place in row[:length]) for row, length in zip(drawn, lengths, strict=True)]

"""A pair as training sees it: pixels and tokens, augmented as the settings say and as seed, epoch and key draw."""

from collections.abc import Sequence

import torch

from altalign.train.data import augment
from altalign.train.data.class_numbers import ClassNumbers
from altalign.train.data.on_device import Undecoded, undecoded
from altalign.train.data.tokenizer import CaptionTokenizer
from altalign.train.data.words import corrupted
from altalign.train.settings.training import DataSettings


def pixels(data: bytes, settings: DataSettings, *, seed: int, epoch: int, key: str) -> torch.Tensor:
    """Pixels of an image's bytes: uint8 (3, crop_px, crop_px).

    Raises:
        UndecodableError: it does not decode whole.
    """
    return augment.training_pixels(
        data,
        resize_px=settings.resize_px,
        crop_px=settings.crop_px,
        flip=settings.flip,
        crop_area_at_least=settings.crop_area_at_least,
        auto_augment=settings.auto_augment,
        scaled_decoding=settings.decoding == "scaled",
        seed=seed,
        epoch=epoch,
        key=key,
    )


def image(data: bytes, settings: DataSettings, *, seed: int, epoch: int, key: str) -> torch.Tensor | Undecoded:
    """The same; or what the device gets that decodes it. Raises as `pixels`."""
    drawn = {"seed": seed, "epoch": epoch, "key": key}
    found = undecoded(data, settings, **drawn) if settings.decoding == "device" else None
    return pixels(data, settings, **drawn) if found is None else found


def tokens(
    captions: Sequence[str],
    tokenizer: CaptionTokenizer | ClassNumbers,
    settings: DataSettings,
    *,
    seed: int,
    epochs: Sequence[int],
    keys: Sequence[str],
) -> list[list[int]]:
    """Word pieces of captions, [CLS] first and [SEP] last; or numbers of classes."""
    share = settings.word_corruption
    if not share or isinstance(tokenizer, ClassNumbers):
        return tokenizer.encode(captions)
    mask, others = tokenizer.number(tokenizer.special.mask), tokenizer.whole_words
    return [
        tokenizer.framed(corrupted(of, share, mask=mask, others=others, seed=seed, epoch=epoch, key=key))
        for of, key, epoch in zip(tokenizer.encode_words(captions), keys, epochs, strict=True)
    ]

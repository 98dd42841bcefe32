"""The ViT tower is timm's, by its weights; dropped patches are not seen; positions fit other sizes."""

from pathlib import Path

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from altalign.errors import UsageError
from altalign.train.model import drawn as step_draws
from altalign.train.model.drawn import TokenDrop
from altalign.train.model.vision_transformer import VisionTower
from altalign.train.settings.training import ImageTowerSettings
from tests.train.plain_draws import halves, plain_keyed
from tests.train.small_towers import images


def tower(**settings: object) -> VisionTower:
    given = {"architecture": "vit_ti16", "width": 0.34, "depth": 0.17, "positions_px": 64, **settings}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return VisionTower(ImageTowerSettings(**given)).eval()


@pytest.mark.parametrize("architecture", ["vit_ti16", "vit_s32"])
def test_local_weights_of_timm_load_and_give_timms_features(architecture: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = {"vit_ti16": "vit_tiny_patch16_224", "vit_s32": "vit_small_patch32_224"}[architecture]
    theirs = timm.create_model(name, pretrained=False).eval()
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = VisionTower(
        ImageTowerSettings(architecture=architecture, weights=str(tmp_path / "model.safetensors"))
    ).eval()
    pixels = images(2, 224)
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(pixels.float() / 127.5 - 1), pre_logits=True)
        torch.testing.assert_close(ours(pixels), expected, rtol=1e-5, atol=1e-5)


def test_pixels_are_normalised_as_the_weights_want_them() -> None:
    pixels = images(2, 64)
    like_timm = (pixels / 255 - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor(
        [0.229, 0.224, 0.225]
    )[:, None, None]
    with torch.no_grad():
        expected = tower()(127.5 * (like_timm + 1))  # which it takes to what timm gives the model
        torch.testing.assert_close(tower(normalisation="imagenet")(pixels), expected, rtol=1e-4, atol=1e-5)
    assert tower(normalisation="imagenet").state_dict().keys() == tower().state_dict().keys()
    with pytest.raises(ValidationError, match='normalisation = "imagenet", and b0 is no ViT; give "range"'):
        ImageTowerSettings(architecture="b0", normalisation="imagenet")


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    save_file(tower(width=1.0).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=r"\[image_tower\] weights: .*of another shape: cls_token 1x1x192 for 1x1x64"):
        tower(weights=str(tmp_path / "model.safetensors"))


def test_a_patch_that_is_left_out_changes_nothing() -> None:
    model, pixels = tower(), images(2, 64)
    kept = TokenDrop(0.25, 16, seed=1, step=2).kept(["0" * 32, "f" * 32], pixels)
    other = pixels.clone()
    for row, patches in zip(other, kept.tolist(), strict=True):
        for patch in set(range(16)) - set(patches):
            row[:, patch // 4 * 16 : patch // 4 * 16 + 16, patch % 4 * 16 : patch % 4 * 16 + 16] = 0
    with torch.no_grad():
        assert model(pixels, kept).equal(model(other, kept))
        assert not model(pixels, kept).allclose(model(pixels))
        assert model(pixels, torch.arange(16).expand(2, 16)).allclose(model(pixels), atol=1e-6)


def test_a_quarter_is_dropped_for_each_pair_and_step_anew() -> None:
    keys, pixels = [f"{number:032x}" for number in range(400)], torch.empty(400, 3, 64, 64)
    kept = TokenDrop(0.25, 16, seed=1, step=2).kept(keys, pixels)
    assert kept.shape == (400, 12)
    assert all(len(set(row)) == 12 and row == sorted(row) for row in kept.tolist())
    counts = torch.bincount(kept.flatten(), minlength=16)
    assert (counts - 300).abs().max() < 5 * (400 * 0.25 * 0.75) ** 0.5  # 5 standard errors
    assert TokenDrop(0.25, 16, seed=1, step=2).kept(keys[7:9], pixels[:2]).equal(kept[7:9])
    assert not TokenDrop(0.25, 16, seed=1, step=3).kept(keys, pixels).equal(kept)
    assert not TokenDrop(0.25, 16, seed=2, step=2).kept(keys, pixels).equal(kept)


def test_kept_patches_are_those_of_a_plain_loop() -> None:
    keys = [f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for number in range(50)]
    for share, left in ((0.25, 12), (0.3, 11), (0.99, 1)):
        found = TokenDrop(share, 16, seed=5, step=9).kept(keys, torch.empty(50, 3, 64, 64)).tolist()
        for key, kept in zip(keys, found, strict=True):
            drawn = {patch: plain_keyed(5, 9, step_draws._PATCH, *halves(key), patch) for patch in range(16)}
            assert kept == sorted(sorted(drawn, key=lambda patch: drawn[patch])[:left])


def test_positions_are_interpolated_for_other_sizes() -> None:
    with torch.no_grad():
        assert tower()(images(1, 96)).shape == (1, 64)

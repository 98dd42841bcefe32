import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from altalign.train.model.batch_norm import BatchNorm, collected
from altalign.train.model.dual_encoder import PARTS, DualEncoder, Temperature, part_of
from tests.train.small_towers import captions, images, small_model

OWN_WIDTH = 80  # of the small image tower


def test_the_image_projection_is_there_where_widths_differ() -> None:
    own, same, other = (
        small_model(),
        small_model(image={"embedding_width": OWN_WIDTH}),
        small_model(image={"embedding_width": 24}),
    )
    assert isinstance(own.image_projection, nn.Identity)
    assert isinstance(same.image_projection, nn.Identity)
    assert (own.width, same.width, other.width) == (OWN_WIDTH, OWN_WIDTH, 24)
    assert isinstance(other.image_projection, nn.Linear)
    assert (other.image_projection.in_features, other.image_projection.out_features) == (OWN_WIDTH, 24)
    assert (own.text_projection.in_features, own.text_projection.out_features) == (32, OWN_WIDTH)
    assert other.text_projection.bias is not None


@pytest.mark.parametrize("width", [0, 24])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_embeddings_are_float32_of_length_1(*, width: int, bfloat16: bool) -> None:
    model = small_model(image={"embedding_width": width})
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        of_images, of_captions = model(images(4), *captions(4))
    for embeddings in (of_images, of_captions):
        assert embeddings.dtype == torch.float32
        assert embeddings.shape == (4, model.width)
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4), rtol=1e-6, atol=1e-6)


def test_an_embedding_is_the_feature_at_length_1() -> None:
    model, (tokens, mask) = small_model(image={"embedding_width": 24}).eval(), captions(3)
    for features, embeddings in (
        (model.image_features(images(3)), model.encode_image(images(3))),
        (model.text_features(tokens, mask), model.encode_text(tokens, mask)),
    ):
        torch.testing.assert_close(embeddings, features / features.norm(dim=1, keepdim=True))
    both = model(images(3), tokens, mask)
    assert torch.equal(both[0], model.encode_image(images(3)))
    assert torch.equal(both[1], model.encode_text(tokens, mask))


def test_a_model_of_float64_stays_so() -> None:
    of_images, of_captions = small_model().double()(images(4), *captions(4))
    assert of_images.dtype == of_captions.dtype == torch.float64


def test_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = small_model(seed=3).state_dict()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)  # and nothing else was drawn
    again, other = small_model(seed=3).state_dict(), small_model(seed=4).state_dict()
    assert all(torch.equal(values, again[name]) for name, values in first.items())
    for name in (
        "image_tower.conv_stem.weight",
        "text_tower.bert.embeddings.word_embeddings.weight",
        "text_projection.weight",
    ):
        assert not torch.equal(first[name], other[name])


def test_the_temperature_is_learned_by_its_logarithm_or_stays() -> None:
    learned, fixed = Temperature(0.5, learned=True), Temperature(1 / 64, learned=False)
    assert learned.value().shape == ()
    assert (learned.value().item(), float(fixed.value())) == (pytest.approx(0.5), pytest.approx(1 / 64))
    learned.value().backward()
    assert learned.logarithm.grad is not None
    assert float(learned.logarithm.grad) == pytest.approx(0.5)  # d exp(x) / dx
    assert not list(fixed.parameters())
    assert float(fixed.state_dict()["logarithm"]) == pytest.approx(math.log(1 / 64))


@pytest.mark.parametrize("learned", [True, False])
def test_a_temperature_goes_back_into_its_range(*, learned: bool) -> None:
    of = Temperature(0.02, learned=learned, at_least=0.001, at_most=0.5)
    for moved, expected in ((3.0, 0.5), (1e-5, 0.001), (0.3, 0.3)):
        with torch.no_grad():
            of.logarithm.fill_(math.log(moved))
        of.clamp()
        assert of.value().item() == pytest.approx(expected)


OF_BOTH_TOWERS = set(PARTS) - {"head", "image_decoder", "captioner"}


def test_every_parameter_is_of_one_part() -> None:
    model = small_model(image={"embedding_width": 24})
    found = {name: part_of(name) for name, _ in model.named_parameters()}
    assert set(found.values()) == OF_BOTH_TOWERS
    assert all(name.startswith(f"{part}.") for name, part in found.items())
    assert part_of("module.image_tower._orig_mod.bn1.weight") == "image_tower"
    with pytest.raises(ValueError, match=r"tail\.weight: no parameter of a dual encoder"):
        part_of("tail.weight")


def trained(model: DualEncoder) -> set[str]:
    """Parts that a backward gives gradients."""
    of_images, of_captions = model.train()(images(4), *captions(4))
    ((of_images @ of_captions.T).sin().sum() / model.temperature.value()).backward()
    return {part_of(name) for name, values in model.named_parameters() if values.grad is not None}


def test_frozen_towers_get_no_gradient_and_stay_in_evaluation() -> None:
    width = {"embedding_width": 24}
    assert trained(small_model(image=width)) == OF_BOTH_TOWERS
    model = small_model(image={**width, "frozen": True}, text={"frozen": True, "dropout": 0.5})
    assert trained(model) == {"image_projection", "text_projection", "temperature"}
    assert model.training
    assert not any(module.training for tower in (model.image_tower, model.text_tower) for module in tower.modules())
    assert not collected(model).numel()
    assert torch.equal(model.encode_image(images(4)), model.encode_image(images(4)))
    assert torch.equal(model.encode_text(*captions(4)), model.encode_text(*captions(4)))


def test_every_parameter_gets_a_gradient() -> None:
    model = small_model(image={"embedding_width": 24})
    trained(model)
    assert all(values.grad is not None and values.grad.isfinite().all() for values in model.parameters())


def test_activations_of_both_towers_are_checkpointed() -> None:
    grown = []
    for checkpointed in (False, True):
        model = small_model()
        if checkpointed:
            model.checkpoint_activations()
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, kept=kept: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            model.image_features(images(4))
            of_images = sum(kept)
            model.text_features(*captions(4))
        grown.append((of_images, sum(kept) - of_images))
    assert grown[1][0] < grown[0][0]
    assert grown[1][1] < grown[0][1]


def test_less_is_kept_for_the_gradient_than_by_timms_batch_norm() -> None:
    model = small_model()
    kept: list[int] = []
    pixels = torch.rand(4, 8, 16, 16, requires_grad=True)
    norm = model.image_tower.bn1
    assert isinstance(norm, BatchNorm)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        norm(pixels)
    assert sum(kept) < 1.1 * pixels.numel()


def test_a_whole_models_file_starts_both_towers(tmp_path: Path) -> None:
    model, path = small_model(seed=1), str(tmp_path / "model.safetensors")
    save_file(model.state_dict(), path)
    other = small_model(seed=2, image={"weights": path}, text={"weights": path})
    state = other.state_dict()
    same = {part_of(name) for name, values in model.state_dict().items() if torch.equal(values, state[name])}
    assert {"image_tower", "text_tower"} <= same
    assert not torch.equal(other.text_projection.weight, model.text_projection.weight)

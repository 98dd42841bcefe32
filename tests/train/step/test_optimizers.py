import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from altalign.errors import UsageError
from altalign.train.model.blocks import as_a_gpu
from altalign.train.model.dual_encoder import DualEncoder
from altalign.train.settings.training import ImageTowerSettings, OptimizerSettings, TextTowerSettings
from altalign.train.step import optimizers
from altalign.train.step.optimizers import gradient_norm, make_optimizer

Reference = Callable[..., np.ndarray]  # weights, gradients of each step, decay, trust -> weights
STEPS = 20
SHAPES = {"weight": (8, 3, 3, 3), "wide": (5, 70), "line": (7,), "one": (1,), "scalar": ()}


def rate_of(step: int) -> float:
    return 0.01 * (1 + step % 3)


def lamb(weights: np.ndarray, gradients: list[np.ndarray], *, decay: float, trust: bool) -> np.ndarray:
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        update = (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-6) + decay * weights
        norms = np.sqrt((weights**2).sum()), np.sqrt((update**2).sum())
        ratio = norms[0] / norms[1] if trust and min(norms) > 0 else 1.0
        weights = weights - rate_of(step) * ratio * update
    return weights


def lars(weights: np.ndarray, gradients: list[np.ndarray], *, decay: float, trust: bool) -> np.ndarray:
    velocity = np.zeros_like(weights)
    for step, gradient in enumerate(gradients, 1):
        norms = np.sqrt((weights**2).sum()), np.sqrt((gradient**2).sum())
        ratio = 0.001 * norms[0] / (norms[1] + decay * norms[0] + 1e-6) if trust and min(norms) > 0 else 1.0
        velocity = 0.9 * velocity + rate_of(step) * ratio * (gradient + decay * weights)
        weights = weights - velocity
    return weights


REFERENCES: dict[str, Reference] = {"lamb": lamb, "lars": lars}


class Part(nn.Module):
    """Parameters of given values."""

    def __init__(self, values: dict[str, np.ndarray]):
        super().__init__()
        for name, value in values.items():
            self.register_parameter(name, nn.Parameter(torch.tensor(value)))


def model_of(values: dict[str, np.ndarray]) -> nn.Module:
    return nn.ModuleDict({"image_tower": Part(values)})


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    gradients: dict[str, list[np.ndarray]],
    first: int = 0,
    after: int = STEPS,
) -> None:
    for step in range(first, after):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.tensor(gradients[name.rpartition(".")[2]][step], dtype=parameter.dtype)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step + 1) * group["factor"]
        optimizer.step()


def random_case(seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, list[np.ndarray]]]:
    draw = np.random.default_rng(seed)
    values = {name: draw.normal(size=shape) for name, shape in SHAPES.items()}
    gradients = {
        name: [draw.normal(size=shape) * draw.choice([1e-3, 1, 1e3]) for _ in range(STEPS)]
        for name, shape in SHAPES.items()
    }
    return values, gradients


def settings_of(**values: Any) -> OptimizerSettings:
    return OptimizerSettings.from_values(values, where="test")


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("decay", [0.0, 1e-5, 0.1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("computed", [nullcontext, as_a_gpu])
def test_twenty_steps_are_those_of_the_reference(
    name: str, decay: float, dtype: type, computed: Callable[[], AbstractContextManager[None]]
) -> None:
    values, gradients = random_case()
    model = model_of({of: value.astype(dtype) for of, value in values.items()}).to(memory_format=torch.channels_last)
    with computed():
        train(model, make_optimizer(model, settings_of(name=name, weight_decay=decay)), gradients)
    for of, parameter in model["image_tower"].named_parameters():  # type: ignore[index]
        expected = REFERENCES[name](values[of], gradients[of], decay=decay, trust=True)
        close = {"rtol": 1e-11, "atol": 1e-12} if dtype is np.float64 else {"rtol": 2e-4, "atol": 1e-5}
        np.testing.assert_allclose(parameter.detach().numpy(), expected, **close)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("weight", "slope"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_a_norm_of_zero_makes_the_ratio_one(name: str, weight: float, slope: float) -> None:
    values, gradients = {"weight": np.full((4, 2), weight)}, {"weight": [np.full((4, 2), slope)] * STEPS}
    model = model_of(values)
    train(model, make_optimizer(model, settings_of(name=name, weight_decay=0.1)), gradients)
    found = model.get_parameter("image_tower.weight").detach().numpy()
    np.testing.assert_allclose(
        found, REFERENCES[name](values["weight"], gradients["weight"], decay=0.1, trust=True), rtol=1e-11
    )
    assert np.isfinite(found).all()


class Towers(nn.Module):
    """The five parts, with every kind of norm there is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image_tower = nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4), nn.BatchNorm2d(4), nn.GroupNorm(2, 4))
        self.image_projection = nn.Linear(4, 3, bias=False)
        self.text_tower = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        self.text_projection = nn.Linear(4, 3)
        self.temperature = nn.ParameterDict({"logarithm": nn.Parameter(torch.tensor(0.5))})


BATCH_NORMS = {f"image_tower.{number}.{name}" for number in (1, 2) for name in ("weight", "bias")}
NORMS = BATCH_NORMS | {f"{norm}.{name}" for norm in ("image_tower.3", "text_tower.1") for name in ("weight", "bias")}
BIASES = {"image_tower.0.bias", "text_tower.2.bias", "text_projection.bias"}
TEMPERATURE = {"temperature.logarithm"}
ALL = {name for name, _ in Towers().named_parameters()}


def names_where(optimizer: torch.optim.Optimizer, says: Callable[[dict[str, Any]], bool]) -> set[str]:
    return {name for group in optimizer.param_groups if says(group) for name in group["param_names"]}


@pytest.mark.parametrize("method", ["lamb", "lars", "adamw", "sgd"])
@pytest.mark.parametrize(
    ("excludes", "excluded"),
    [
        ([], set()),
        (["bias"], BIASES),
        (["norm"], NORMS),
        (["batch_norm"], BATCH_NORMS),
        (["bias", "norm"], BIASES | NORMS),
        (["norm", "batch_norm"], NORMS),
    ],
)
def test_what_decays_and_what_has_a_trust_ratio_is_as_the_settings_say(
    method: str, excludes: list[str], excluded: set[str]
) -> None:
    decays = make_optimizer(Towers(), settings_of(name=method, decay_excludes=excludes, trust_excludes=[]))
    trusts = make_optimizer(Towers(), settings_of(name=method, decay_excludes=[], trust_excludes=excludes))
    assert names_where(decays, lambda group: group["weight_decay"] == 1e-5) == ALL - TEMPERATURE - excluded
    assert names_where(decays, lambda group: group["weight_decay"] == 0) == TEMPERATURE | excluded
    assert names_where(trusts, lambda group: group["trust"]) == (
        ALL - TEMPERATURE - excluded if method in ("lamb", "lars") else set()
    )


@pytest.mark.parametrize("method", REFERENCES)
def test_groups_without_decay_or_trust_step_without_them(method: str) -> None:
    model = Towers()
    before = {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(
        model, settings_of(name=method, weight_decay=0.5, decay_excludes=["norm"], trust_excludes=["bias"])
    )
    draw = np.random.default_rng(1)
    gradients = {name: [draw.normal(size=value.shape) for _ in range(STEPS)] for name, value in before.items()}
    for step in range(STEPS):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.tensor(gradients[name][step], dtype=torch.float32)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step + 1)
        optimizer.step()
    for name, parameter in model.named_parameters():
        decay, trust = 0.0 if name in NORMS | TEMPERATURE else 0.5, name not in BIASES | TEMPERATURE
        np.testing.assert_allclose(
            parameter.detach().numpy(),
            REFERENCES[method](before[name], gradients[name], decay=decay, trust=trust),
            rtol=1e-3,
            atol=1e-4,
            err_msg=name,
        )


def test_every_part_has_its_factor_and_every_parameter_is_in_one_group() -> None:
    factors = {"image_tower": 0.1, "temperature": 0.0}
    optimizer = make_optimizer(Towers(), settings_of(rate_factors=factors))
    names = [name for group in optimizer.param_groups for name in group["param_names"]]
    assert len(names) == len(set(names))
    assert set(names) == ALL
    for group in optimizer.param_groups:
        assert {name.partition(".")[0] for name in group["param_names"]} == {group["part"]}
        assert group["factor"] == factors.get(group["part"], 1.0)


def test_rows_say_what_happens_to_each_group() -> None:
    groups = make_optimizer(Towers(), settings_of(trust_excludes=["bias"])).param_groups
    assert [(group["part"], tuple(group["kinds"]), group["weight_decay"], group["trust"]) for group in groups] == [
        ("image_tower", ("weight",), 1e-5, True),
        ("image_tower", ("bias",), 1e-5, False),
        ("image_tower", ("norm", "batch_norm"), 0.0, True),
        ("image_projection", ("weight",), 1e-5, True),
        ("text_tower", ("weight",), 1e-5, True),
        ("text_tower", ("bias",), 1e-5, False),
        ("text_tower", ("norm",), 0.0, True),
        ("text_projection", ("weight",), 1e-5, True),
        ("text_projection", ("bias",), 1e-5, False),
        ("temperature", ("weight",), 0.0, False),
    ]
    assert [len(group["params"]) for group in groups][2] == 6
    names = [name for group in groups for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, _ in Towers().named_parameters())


def test_norms_of_the_model_are_found_by_what_they_are() -> None:
    image = ImageTowerSettings(architecture="b0", width=0.25, depth=0.3, embedding_width=8)
    model = DualEncoder(image, TextTowerSettings(layers=1, width=32, heads=2), vocabulary=20, tokens_at_most=8)
    optimizer = make_optimizer(model, settings_of(decay_excludes=["norm"]))
    undecayed = names_where(optimizer, lambda group: group["weight_decay"] == 0)
    lines = {name for name, parameter in model.named_parameters() if parameter.ndim <= 1}
    assert undecayed == {name for name in lines if ".bn" in name or "LayerNorm" in name} | TEMPERATURE
    assert {"image_tower.bn1.weight", "text_tower.bert.embeddings.LayerNorm.bias"} < undecayed
    assert names_where(optimizer, lambda group: group["part"] == "image_projection") == {
        "image_projection.weight",
        "image_projection.bias",
    }


def test_frozen_parameters_are_in_no_group() -> None:
    model = Towers()
    model.image_tower.requires_grad_(False)  # noqa: FBT003 - torch's
    groups = make_optimizer(model, settings_of()).param_groups
    assert {group["part"] for group in groups} == {"image_projection", "text_tower", "text_projection", "temperature"}
    model.requires_grad_(False)  # noqa: FBT003 - torch's
    with pytest.raises(UsageError, match="no parameter is left to train"):
        make_optimizer(model, settings_of())


def test_a_parameter_of_no_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tail\.weight: no parameter of a dual encoder"):
        make_optimizer(nn.ModuleDict({"tail": nn.Linear(2, 2)}), settings_of())


@pytest.mark.parametrize("method", ["lamb", "lars", "adamw", "sgd"])
def test_state_that_is_stored_and_read_goes_on_bit_for_bit(method: str) -> None:
    values, gradients = random_case()
    values = {name: value.astype(np.float32) for name, value in values.items()}
    whole, settings = model_of(values), settings_of(name=method)
    train(whole, make_optimizer(whole, settings), gradients)

    first = model_of(values)
    optimizer = make_optimizer(first, settings)
    train(first, optimizer, gradients, 0, 9)
    stored = io.BytesIO()
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    stored.seek(0)
    read = torch.load(stored, weights_only=True)
    second = model_of({name: np.zeros_like(value) for name, value in values.items()})
    second.load_state_dict(read["model"])
    optimizer = make_optimizer(second, settings)
    optimizer.load_state_dict(read["optimizer"])
    train(second, optimizer, gradients, 9, STEPS)
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("method", REFERENCES)
def test_parameters_together_step_as_they_do_one_by_one(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, gradients = random_case()
    found = []
    for numbers in (1, 300, 1 << 30):
        monkeypatch.setattr(optimizers, "_NUMBERS_AT_A_TIME", numbers)
        model = model_of(values)
        train(model, make_optimizer(model, settings_of(name=method)), gradients)
        found.append(model.state_dict())
    for name in found[0]:
        assert torch.equal(found[0][name], found[1][name])
        assert torch.equal(found[0][name], found[2][name])


@pytest.mark.parametrize("method", REFERENCES)
def test_a_parameter_without_gradient_stays_and_its_steps_count(method: str) -> None:
    model = model_of({"weight": np.ones(3), "wide": np.ones(3)})
    optimizer = make_optimizer(model, settings_of(name=method))
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    model.get_parameter("image_tower.weight").grad = torch.ones(3, dtype=torch.float64)
    optimizer.step()
    assert torch.equal(model.get_parameter("image_tower.wide"), torch.ones(3, dtype=torch.float64))
    assert not torch.equal(model.get_parameter("image_tower.weight"), torch.ones(3, dtype=torch.float64))
    assert [group["steps"] for group in optimizer.param_groups] == [1]


def test_the_norm_of_all_gradients_leaves_them_as_they_are() -> None:
    model = model_of({"weight": np.ones(2), "line": np.ones(1), "one": np.ones(1)})
    model.get_parameter("image_tower.weight").grad = torch.tensor([3.0, 0.0], dtype=torch.float64)
    model.get_parameter("image_tower.line").grad = torch.tensor([4.0], dtype=torch.float64)
    assert gradient_norm(model).item() == pytest.approx(5.0)
    assert model.get_parameter("image_tower.weight").grad.tolist() == [3, 0]  # type: ignore[union-attr]

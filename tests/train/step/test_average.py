"""The moving average of weights: by hand, and as timm has it."""

import pytest
import torch
from timm.utils.model_ema import ModelEmaV3
from torch import nn

from altalign.train.step.average import Average


def test_an_average_of_three_steps_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(8.0)
    average = Average(model, 0.75)
    found = []
    for value in (0.0, 4.0, 8.0):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update()
        found.append(float(average.values["weight"]))
    assert found == [6.0, 5.5, 6.125]
    with average.in_place():
        assert model.weight.item() == 6.125
    assert model.weight.item() == 8.0


def test_an_average_is_timms_with_running_statistics() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    average, theirs = Average(model, 0.9), ModelEmaV3(model, decay=0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.rand(2, 3, 5, 5)).square().sum().backward()
        optimizer.step()
        average.update()
        theirs.update(model)
    expected = theirs.module.state_dict()
    assert expected.keys() == average.values.keys()
    for name, value in average.values.items():
        assert torch.equal(value, expected[name]), name
        assert value.stride() == model.state_dict()[name].stride()


def test_the_weights_come_back_where_an_evaluation_fails() -> None:
    model = nn.Linear(2, 2)
    average, before = Average(model, 0.5), model.weight.detach().clone()
    average.values["weight"].zero_()

    def evaluated() -> None:
        with average.in_place():
            assert not model.weight.any()
            raise ValueError("as in an evaluation")

    with pytest.raises(ValueError, match="as in an evaluation"):
        evaluated()
    assert torch.equal(model.weight, before)

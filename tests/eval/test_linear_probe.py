import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from altalign.errors import UnreadableError, UsageError
from altalign.eval import linear_probe as module
from altalign.eval.class_names import Classes
from altalign.eval.encoded import Features
from altalign.eval.linear_probe import GROUPS, TASKS, best_strength, fitted, linear_probe, means, probe, vtab
from altalign.eval.sets import LabelledSet
from altalign.eval.settings import EvalSets
from tests.eval.one_hot import ENCODER, images_of


def drawn(classes: int, number: int = 120, width: int = 5, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of classes that overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % classes
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    return centres[labels] + torch.randn(number, width, generator=generator), labels


@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_coefficients_and_accuracy_are_those_of_scikit_learn(classes: int, strength: float) -> None:
    features, labels = drawn(classes)
    test, test_labels = drawn(classes, seed=1)
    theirs = LogisticRegression(C=1 / strength, max_iter=10_000, tol=1e-9)
    theirs.fit(features.double().numpy(), labels.numpy())
    ours = fitted(features, labels, classes=classes, strength=strength)
    coefficients, intercept = torch.from_numpy(theirs.coef_), torch.from_numpy(theirs.intercept_)
    if classes == 2:  # theirs has one vector, the difference of our two
        weights, bias = ours.weights[1:] - ours.weights[:1], ours.bias[1:] - ours.bias[:1]
    else:
        weights, bias = ours.weights, ours.bias - ours.bias.mean()
        intercept = intercept - intercept.mean()
    torch.testing.assert_close(weights, coefficients, rtol=0, atol=1e-3)
    torch.testing.assert_close(bias, intercept, rtol=0, atol=1e-3)
    accuracy = (ours.scores(test).argmax(1) == test_labels).double().mean().item()
    assert accuracy == pytest.approx(theirs.score(test.double().numpy(), test_labels.numpy()), abs=1e-3)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = drawn(3)
    whole = fitted(features, labels, classes=3, strength=1.0)
    monkeypatch.setattr(module, "_ROWS", 7)
    parts = fitted(features, labels, classes=3, strength=1.0)
    torch.testing.assert_close(parts.weights, whole.weights, rtol=0, atol=1e-6)


def test_the_strength_is_the_best_of_those_that_the_search_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strength that answers right is one; others are wrong in proportion to their distance."""
    asked: list[float] = []

    class Wrong:
        def __init__(self, strength: float) -> None:
            self.strength = strength

        def scores(self, features: torch.Tensor) -> torch.Tensor:
            wrong = round(abs(math.log10(self.strength) - 1.375) * 8)
            return torch.nn.functional.one_hot((torch.arange(len(features)) < wrong).long(), 2)

    def stood_in(_: torch.Tensor, __: torch.Tensor, *, classes: int, strength: float, gradient_at_most: float) -> Wrong:
        asked.append(strength)
        return Wrong(strength)

    monkeypatch.setattr(module, "fitted", stood_in)
    features = torch.zeros(100, 1)
    labels = torch.zeros(100, dtype=torch.int64)
    assert best_strength(features, labels, features, labels, classes=2) == pytest.approx(10**1.375)
    assert sorted(asked)[0] == pytest.approx(1e-6)
    assert sorted(asked)[-1] == pytest.approx(1e6)
    assert len(asked) == len(set(asked)) <= 15


def test_of_equal_strengths_the_strongest_is_taken() -> None:
    features, labels = torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    assert best_strength(features, labels, features, labels, classes=2) == pytest.approx(1e6)


def test_a_probe_is_fitted_on_both_parts() -> None:
    features, labels = drawn(3, number=60)
    held, held_labels = drawn(3, number=40, seed=1)
    of = probe(features, labels, classes=3, validation=(held, held_labels))
    both = fitted(torch.cat([features, held]), torch.cat([labels, held_labels]), classes=3, strength=of.strength)
    assert torch.equal(of.weights, both.weights)
    alone = probe(features, labels, classes=3, seed=2)
    assert torch.equal(alone.weights, fitted(features, labels, classes=3, strength=alone.strength).weights)


def test_a_class_without_examples_is_not_guessed() -> None:
    features, labels = drawn(3)
    of = fitted(features, labels, classes=4, strength=0.1)
    assert not (of.scores(features).argmax(1) == 3).any()


def test_a_probe_of_sets_is_measured_on_another(tmp_path: Path) -> None:
    classes = Classes(("a", "b", "c"))

    def of(numbers: list[int], labels: list[int]) -> LabelledSet:
        return LabelledSet(images_of([f"image{number}".encode() for number in numbers]), np.array(labels), classes, {})

    train, held, test = of([4, 5, 6] * 4, [0, 1, 2] * 4), of([4, 5, 6], [0, 1, 2]), of([4, 5, 6, 4], [0, 1, 2, 1])
    found = linear_probe(test, train, held, Features(ENCODER, batch=5))
    assert found.metrics == {"top1": 75, "top5": 100, "mean_per_class": pytest.approx(250 / 3)}
    assert found.facts["train_images"] == 15
    ranks = found.outcomes["rank"].tolist()
    assert ranks[:3] == [1, 1, 1]
    assert ranks[3] > 1  # 2 or 3: both other classes are as far


def test_a_probe_takes_features_before_the_projection_where_it_is_asked_to() -> None:
    """The projection of this model leaves all images alike; its tower tells them apart, by lengths alone."""
    alike = replace(
        ENCODER,
        encode_image=lambda images: torch.ones(len(images), 2),
        image_features=lambda images: images[:, :1].float(),
    )
    classes, numbers = Classes(("a", "b")), [2, 3, 8, 9]
    images = images_of([f"image{number}".encode() for number in numbers])
    labelled = LabelledSet(images, np.array([0, 0, 1, 1]), classes, {})
    features = Features(alike, batch=3)
    assert linear_probe(labelled, labelled, labelled, features.before_projection()).metrics["top1"] == 100
    assert linear_probe(labelled, labelled, labelled, features).metrics["top1"] < 100
    assert features.before_projection().of_images(images).embeddings.tolist() == [[2], [3], [8], [9]]
    with pytest.raises(UsageError, match="no features before its projection"):
        Features(ENCODER, batch=3).before_projection()


def test_features_before_the_projection_are_kept_apart(tmp_path: Path) -> None:
    encoder = replace(ENCODER, digest="this", image_features=lambda images: images[:, :1].float())
    images = images_of([b"image4", b"image5"])
    for _ in range(2):
        features = Features(encoder, batch=3, folder=str(tmp_path))
        assert features.of_images(images).embeddings.shape == (2, 10)
        assert features.before_projection().of_images(images).embeddings.tolist() == [[4], [5]]


@pytest.mark.parametrize(
    ("name", "tasks"), [("nlip-classes", ["linear_probe", "zero_shot"]), ("zerovl-probes", ["linear_probe"])]
)
def test_probes_of_the_papers_are_before_the_projection(name: str, tasks: list[str]) -> None:
    sets = EvalSets.load(f"configs/eval-{name}.toml").set
    assert sorted({each.task for each in sets}) == tasks
    probes = [each for each in sets if each.task == "linear_probe"]
    assert len(probes) == {"nlip-classes": 12, "zerovl-probes": 6}[name]
    assert {each.features for each in probes} == {"before projection"}


# VTAB -----------------------------------------------------------------------------------------------------------------


def test_there_are_19_tasks_in_three_groups() -> None:
    assert len(TASKS) == len(set(TASKS)) == 19
    assert {name: len(of) for name, of in GROUPS.items()} == {"natural": 7, "specialised": 4, "structured": 8}


def test_the_mean_of_all_is_that_of_a_plain_loop_over_all_19() -> None:
    accuracies = {name: 3.0 * number for number, name in enumerate(TASKS)}
    found = means(accuracies)
    assert found["mean_all"] == pytest.approx(sum(accuracies.values()) / 19)
    for group, names in GROUPS.items():
        assert found[f"mean_{group}"] == pytest.approx(sum(accuracies[name] for name in names) / len(names))


def test_a_missing_task_takes_its_means_away() -> None:
    assert means({name: 50.0 for name in TASKS if name != "kitti"}).keys() == {"mean_natural", "mean_specialised"}
    assert means({"mine": 10.0}) == {}


def write_task(folder: Path, *, wrong: int = 0) -> None:
    """A task of three classes that an image names; of the test images so many have another's."""
    folder.mkdir(parents=True)
    parts = {"train800": list(range(3)) * 4, "val200": list(range(3)), "test": [0, 1, 2, 0, 1]}
    for part, classes in parts.items():
        lines = []
        for place, number in enumerate(classes):
            seen = (number + 1) % 3 if part == "test" and place < wrong else number
            (folder / f"{part}-{place}.jpg").write_bytes(f"image{seen}".encode())
            lines.append(f"{part}-{place}.jpg {number}")
        (folder / f"{part}.txt").write_text("\n".join(lines))


def test_tasks_that_are_there_are_probed_and_the_others_counted(tmp_path: Path) -> None:
    for place, name in enumerate(("eurosat", "kitti")):
        write_task(tmp_path / name, wrong=place)
    found = vtab(str(tmp_path), Features(ENCODER, batch=4))
    assert found.metrics == {"eurosat": 100, "kitti": 80, "mean_there": 90}
    assert found.facts == {"tasks": 2, "of_tasks": 19}
    assert len(found.left_out["no folder of this task"]) == 17
    assert len(found.rows) == len(found.outcomes["rank"]) == 10


def test_a_folder_of_nothing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="no folder of VTAB") as caught:
        vtab(str(tmp_path), Features(ENCODER, batch=4))
    assert "\n" not in str(caught.value)

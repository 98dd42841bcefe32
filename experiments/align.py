"""What the experiment on ALIGN trains on, and what it measures beside retrieval: neighbours, classes, composed queries.

All of it is drawn. The noisy pool stands for ALIGN's pairs, the clean set for Conceptual Captions. Scenes of composed
queries are families on one ground: three things, alone and in twos. One thing plus the name of a second asks for both,
both minus the name of one for the other. By the image alone two scenes are as near, and the text names no ground.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, permutations
from pathlib import Path
from random import Random
from typing import Any

import torch

from altalign.demo import classes
from altalign.demo.draw import draw, encode
from altalign.demo.scenes import BOILERPLATE, COLOURS, Group, Scene, random_scene
from altalign.eval import composed
from altalign.eval.encoded import ENCODED_TOGETHER, Features
from altalign.eval.image_sources import folder_of
from altalign.models import torch_models
from experiments import zerovl
from experiments.data import Pair, set_of
from experiments.nlip import SCENES, SHUFFLED, with_shuffled
from experiments.plan import Job
from experiments.zerovl import TEST_IMAGES, drawn

CLEAN = 1_000
SHUFFLED_SHARE, BOILERPLATE_SHARE = 0.4, 0.1  # of the noisy pool; the captions of the rest are true
TESTS = ("test-a", "test-b", "test-c")  # beside test-plain: four tests of 250 scatter half as much as one
FAMILIES = 40  # of six scenes, with six queries of each sign
SIDE_PX = 96


# Pairs ---------------------------------------------------------------------------------------------------------------


def noisy() -> dict[str, list[Pair]]:
    """The pool: true pairs, pairs with each other's captions, and pairs with boilerplate, each kind a source."""
    found, rng = with_shuffled(drawn(SCENES), SHUFFLED_SHARE), Random("boilerplate")
    chosen = {*rng.sample(range(len(found["true"])), round(BOILERPLATE_SHARE * sum(map(len, found.values()))))}
    of_true = list(enumerate(found["true"]))
    return {
        "true": [pair for place, pair in of_true if place not in chosen],
        SHUFFLED: found[SHUFFLED],
        "boilerplate": [(image, rng.choice(BOILERPLATE)) for place, (image, _) in of_true if place in chosen],
    }


# Evaluation ----------------------------------------------------------------------------------------------------------


def families(count: int) -> Iterator[tuple[str, list[Group]]]:
    """Grounds, each with three things of different shapes and colours; none is on the same ground twice."""
    rng, seen = Random("composed"), set[tuple[str, Group]]()
    for _ in range(count):
        ground, things = rng.choice(list(COLOURS)), list[Group]()
        while len(things) < 3:
            scene = random_scene(rng)
            thing = Group(scene.groups[0].shape, scene.groups[0].colour)
            is_like = any(thing.shape == other.shape or thing.colour == other.colour for other in things)
            if scene.ground == ground and not is_like and (ground, thing) not in seen:
                seen.add((ground, thing))
                things.append(thing)
        yield ground, things


def scenes_of(things: Sequence[Group], ground: str) -> dict[tuple[int, ...], Scene]:
    """Each of the things, and each two of them, by their places."""
    one = {(place,): Scene((thing,), "centre", ground, "large") for place, thing in enumerate(things)}
    return one | {pair: Scene((things[pair[0]], things[pair[1]]), "left", ground) for pair in combinations(range(3), 2)}


def _evaluation(folder: Path) -> None:
    """Pictures by colour, and composed queries, with the file of sets that reads them."""
    rng, queries = Random("drawn"), dict[str, list[dict[str, str]]](plus=[], minus=[])
    classes.write(folder / "classes")
    (folder / "scenes").mkdir()
    for number, (ground, things) in enumerate(families(FAMILIES)):
        names = dict[tuple[int, ...], str]()
        for places, scene in scenes_of(things, ground).items():
            names[places] = f"{number:02}-{''.join(map(str, places))}.webp"
            (folder / "scenes" / names[places]).write_bytes(encode(draw(scene, SIDE_PX, SIDE_PX, rng), "webp"))
        for first, second in permutations(range(3), 2):
            one, both = names[(first,)], names[tuple(sorted((first, second)))]
            text = f"{things[second].colour} {things[second].shape}"
            queries["plus"].append({"image": one, "text": text, "sign": "+", "target": both})
            queries["minus"].append({"image": both, "text": text, "sign": "-", "target": one})
    at, sets = f"data/{folder.name.removesuffix('.partial')}", list[str]()
    for task, more in (("knn", f'train = "{at}/classes/colours/train"'), ("zero_shot", 'templates = ["a {}"]')):
        sets.append(f'[[set]]\ntask = "{task}"\nname = "colours"\npath = "{at}/classes/colours/test"\n{more}\n')
    for name, of_sign in queries.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, of_sign)))
        sets.append(
            f'[[set]]\ntask = "composed"\nname = "{name}"\npath = "{at}/{name}.jsonl"\nimages = "{at}/scenes"\n'
        )
    (folder / "sets.toml").write_text("\n".join(sets))


SETS: dict[str, Callable[[Path], None]] = {
    "plain": zerovl.SETS["plain"],
    "noisy": set_of(noisy),
    "clean": set_of(lambda: {"clean": drawn(CLEAN, name="clean")}),
    "test-plain": zerovl.SETS["test-plain"],
    "evaluation": _evaluation,
    **{name: set_of(lambda name=name: {name: drawn(TEST_IMAGES, is_test=True, name=name)}) for name in TESTS},
}

VARIANTS: dict[str, Any] = {}


def measured(_job: Job, run_folder: Path) -> dict[str, float]:
    """What composed queries find by half of them, to set what they find beside it."""
    return alone(Features(torch_models.opened(f"run:{run_folder}", device="cpu"), batch=ENCODED_TOGETHER))


def alone(features: Features) -> dict[str, float]:
    """Recall@1 in percent of the composed queries by their image alone, and by their text alone."""
    images, values = folder_of("data/evaluation/scenes"), dict[str, float]()
    vectors = features.of_images(images).embeddings
    place = {name.rpartition("/")[2]: number for number, name in enumerate(images.names)}
    for name in ("plus", "minus"):
        queries = composed.read_queries(f"data/evaluation/{name}.jsonl")
        own = torch.tensor([place[query.image] for query in queries])
        targets = torch.tensor([place[query.target] for query in queries])
        texts = queries[0].sign * features.of_texts([query.text for query in queries])
        for part, of_queries in (("image", vectors[own]), ("text", texts)):
            ranks = composed.search(of_queries, vectors, own, targets)
            values[f"{name}_by_{part}"] = composed.measured({"rank": ranks.numpy()})["r1"]
    return values

"""Captions say what a scene shows."""

from collections import Counter
from random import Random

import pytest

from altalign.demo import scenes
from altalign.demo.scenes import COLOURS, Group, Scene, random_scene
from tests.altalign.demo.reader import ngrams


@pytest.mark.parametrize("language", ["en", *scenes.LANGUAGES])
def test_captions_have_3_to_20_words_and_are_mostly_distinct(language: str) -> None:
    rng = Random(5)
    texts = [scenes.caption(random_scene(rng, common=language != "en"), language, rng) for _ in range(1000)]
    assert {len(ngrams(text)[0]) for text in texts} <= set(range(3, 21))
    assert len(set(texts)) > 500
    assert max(Counter(texts).values()) <= 12


def test_an_english_caption_names_shape_and_colour_and_nothing_that_is_not_there() -> None:
    rng = Random(6)
    for _ in range(1000):
        scene = random_scene(rng)
        words = set(ngrams(scenes.english(scene, rng))[0])
        for group in scene.groups:
            assert group.colour in words
            assert words & {group.shape, f"{group.shape}s", f"{group.shape}es"}
        assert words & set(COLOURS) <= {group.colour for group in scene.groups} | {scene.ground}
        assert words & {"striped", "dotted", "checked"} <= {scene.texture}
        assert words & {"small", "large"} <= {scene.size}
        assert words & {"two", "three", "four", "five"} <= {
            ["one", "two", "three", "four", "five"][scene.groups[0].count - 1]
        }


def test_relations_are_told_from_either_side() -> None:
    rng = Random(7)
    scene = Scene((Group("circle", "red"), Group("star", "blue")), "left", "white")
    texts = {scenes.english(scene, rng) for _ in range(200)}
    assert "a red circle to the left of a blue star" in texts
    assert "a blue star to the right of a red circle" in texts
    assert not any("circle to the right" in text or "star to the left" in text for text in texts)


@pytest.mark.parametrize(
    ("language", "caption"),
    [
        ("de", "drei gelbe Sterne auf schwarzem Grund"),
        ("fr", "trois étoiles jaunes sur fond noir"),
        ("es", "tres estrellas amarillas sobre fondo negro"),
        ("ru", "три жёлтые звезды на чёрном фоне"),
        ("ja", "黒い背景に黄色い星が三つ"),
        ("zh", "黑色背景上有三个黄色的五角星"),
    ],
)
def test_other_languages_agree_in_gender_number_and_case(language: str, caption: str) -> None:
    rng = Random(8)
    scene = Scene((Group("star", "yellow", 3),), "row", "black")
    assert caption in {scenes.foreign(scene, language, rng) for _ in range(100)}


def test_noise_is_short_long_or_unique() -> None:
    rng = Random(9)
    assert all(len(ngrams(scenes.short_text(rng))[0]) < 3 for _ in range(100))
    assert all(
        len(ngrams(scenes.long_text(lambda: scenes.english(random_scene(rng), rng)))[0]) > 20 for _ in range(100)
    )
    rare = Counter(ngram for _ in range(100) for ngram in set(ngrams(scenes.rare_text("a red circle", rng))[1]))
    assert sum(count == 1 for count in rare.values()) >= 100

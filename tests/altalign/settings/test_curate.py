import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign import __version__
from altalign.errors import UsageError
from altalign.settings import curate
from altalign.settings.common import dump, flatten, stage_of
from altalign.settings.curate import CurateConfig, FetchSettings

ROOT = Path(__file__).parents[3]
DEFAULTS = tomllib.loads((ROOT / "tests" / "cases" / "settings_defaults.toml").read_text(encoding="utf-8"))

# First reader of each setting; None: no byte of a run's result depends on it.
STAGES = {
    "run.folder": None,
    "run.keep_work": None,
    "run.durable": None,
    **dict.fromkeys((f"input[0].{name}" for name in DEFAULTS["input"]), "extract"),
    "text.words_at_least": "judge",
    "text.words_at_most": "judge",
    "text.bytes_at_most": "judge",
    "text.images_per_text_at_most": "tables",
    "text.vocabulary_size": "tables",
    "text.tables": "tables",
    "text.filters": "judge",
    "image.short_side_above_px": "fetch",
    "image.aspect_ratio_below": "fetch",
    "image.texts_per_image_at_most": "tables",
    "image.pixels_at_most": "fetch",
    "image.blocked_hashes": "fetch",
    "image.filters": "fetch",
    "image.nsfw.model": "fetch",
    "image.nsfw.drop_at_or_above": "fetch",
    **dict.fromkeys((f"fetch.{name}" for name in DEFAULTS["fetch"]), "fetch"),
    **dict.fromkeys((f"fetch.{name}" for name in ("timeout_s", "retries")), None),  # patience
    **dict.fromkeys((f"fetch.{name}" for name in ("signing_key", "signature_agent")), None),  # who asks
    # pace
    **dict.fromkeys(
        (f"fetch.{name}" for name in ("keep_found", "threads", "connections_per_host", "requests_per_host_s")),
        None,
    ),
    **dict.fromkeys((f"decontaminate.{name}" for name in DEFAULTS["decontaminate"]), "decontaminate"),
    "decontaminate.embedder": "fetch",
    "dedup.within_pool": "decontaminate",
    "shards.samples_per_shard": "write",
    "shards.resize_short_side_px": "fetch",
    "shards.portable": "fetch",
    "audit.keep_dropped": "extract",
    **dict.fromkeys((f"card.{name}" for name in DEFAULTS["card"]), "write"),
    "engine.runner": None,
    "engine.workers": None,
}


def config_of(**sections: Any) -> CurateConfig:
    return CurateConfig.from_values({"input": {"paths": ["a"]}, **sections}, where="here")


def test_every_default_is_as_the_contract_says() -> None:
    found = CurateConfig.from_values({"input": {"paths": DEFAULTS["input"]["paths"]}}, where="here").model_dump(
        mode="json"
    )
    expected = dict(flatten({**DEFAULTS, "input": [DEFAULTS["input"]]}))
    in_contract = {name: value for name, value in flatten(found) if name in expected}  # rules may add settings
    assert in_contract == expected
    assert {name: type(value) for name, value in in_contract.items() if name != "fetch.timeout_s"} == {
        name: type(value) for name, value in expected.items() if name != "fetch.timeout_s"
    }


def test_settings_stand_in_the_order_of_the_contract() -> None:
    expected = [name for name, _ in flatten({**DEFAULTS, "input": [DEFAULTS["input"]]})]
    assert [name for name, _ in flatten(config_of().model_dump(mode="json")) if name in expected] == expected


def test_every_setting_has_a_stage_or_changes_no_byte() -> None:
    found = {name: stage_of(CurateConfig, name) for name, _ in flatten(config_of().model_dump(mode="json"))}
    assert {name: stage for name, stage in found.items() if name in STAGES} == STAGES
    assert all(stage for name, stage in found.items() if name not in STAGES)


def test_the_names_inside_test_sets_have_a_stage() -> None:
    config = config_of(decontaminate={"test_sets": [{"name": "coco", "path": "p"}]})
    names = [name for name, _ in flatten(config.model_dump(mode="json")) if "test_sets" in name]
    assert {stage_of(CurateConfig, name) for name in names} == {"decontaminate"}
    assert len(names) == 3


def test_a_default_that_is_written_out_is_the_same_setting(tmp_path: Path) -> None:
    written = tmp_path / "all.toml"
    default = dump(config_of().model_dump(mode="json"))
    written.write_text(default, encoding="utf-8")
    again = dump(CurateConfig.load(written).model_dump(mode="json"))
    assert again == default
    assert "timeout_s = 10.0" in default


def test_a_whole_number_for_a_fraction_is_the_same_setting() -> None:
    assert config_of(fetch={"timeout_s": 10}) == config_of()
    assert dump(config_of(fetch={"timeout_s": 10}).model_dump(mode="json")) == dump(config_of().model_dump(mode="json"))


# tests/train/settings/test_training.py reads those
OF_TRAINING = ("align-", "eval-", "nlip-", "probe-", "train-", "tune-", "zerovl-")


@pytest.mark.parametrize(
    "path",
    sorted(path for path in (ROOT / "configs").glob("*.toml") if not path.name.startswith(OF_TRAINING)),
    ids=lambda path: path.name,
)
def test_the_configs_that_ship_are_sound(path: Path) -> None:
    assert CurateConfig.load(path).input


def test_inputs_come_one_or_many() -> None:
    assert config_of(input=[{"paths": ["a"]}, {"paths": ["b"], "name": "second"}]).input[1].source == "second"
    assert config_of(input={"paths": ["a"], "kind": "wat"}).input[0].source == "wat"


def test_the_user_agent_that_is_sent_has_our_version_and_nothing_to_fill_in() -> None:
    assert FetchSettings().user_agent_sent == f"altalign/{__version__}"
    assert FetchSettings(user_agent="me/1 (+https://example.org)").user_agent_sent == "me/1 (+https://example.org)"
    assert (
        FetchSettings(user_agent="altalign/VERSION (+https://example.org)").user_agent_sent
        == f"altalign/{__version__} (+https://example.org)"
    )


@pytest.mark.parametrize(
    "embedder", ["dct", "phash", "open_clip:ViT-B-32:laion2b", "timm:vit:/a:b", "onnx:C:/model.onnx", "run:runs/a"]
)
def test_an_embedder_is_a_name_or_a_form(embedder: str) -> None:
    assert config_of(decontaminate={"embedder": embedder}).decontaminate.embedder == embedder


@pytest.mark.parametrize(
    "embedder", ["", "dkt", "dct:", "dct:x", "onnx", "onnx:", "run:", "open_clip:ViT", "open_clip::x", "timm:a:", "DCT"]
)
def test_what_is_no_embedder_is_refused(embedder: str) -> None:
    with pytest.raises(UsageError, match="not of the form"):
        config_of(decontaminate={"embedder": embedder})


@pytest.mark.parametrize(
    ("section", "name", "sound", "unsound"),
    [
        ("text", "words_at_least", [0, 20], [-1, 21]),
        ("text", "words_at_most", [3, 2**63 - 1], [2, 2**63]),
        ("text", "images_per_text_at_most", [0], [-1]),
        ("text", "vocabulary_size", [1], [0]),
        ("image", "short_side_above_px", [0], [-1]),
        ("image", "aspect_ratio_below", [1.01, 100], [1, 0.5, -3]),
        ("image", "texts_per_image_at_most", [0], [-1]),
        ("image", "pixels_at_most", [1], [0]),
        ("fetch", "timeout_s", [0.1, 60], [0, -1]),
        ("fetch", "retries", [0], [-1]),
        ("fetch", "bytes_at_most", [1], [0]),
        ("fetch", "threads", [1], [0]),
        ("fetch", "connections_per_host", [1], [0]),
        ("fetch", "requests_per_host_s", [0.01], [0]),
        ("fetch", "ports", [[], [1, 65_535]], [[0], [65_536], ["80"], 80]),
        (
            "fetch",
            "user_agent",
            ["x", "a/1 (+https://example.org)"],
            ["", " ", "a\r\nb", "é"],
        ),
        (
            "fetch",
            "allow_addresses",
            [[], ["127.0.0.1:8080", "10.0.0.0/8", "[::1]:80"]],
            [["localhost"], ["10.0.0.1/8"], ["127.0.0.1", ""]],
        ),
        ("decontaminate", "clusters", [10], [0, 9]),
        ("decontaminate", "similarity_above", [0, 0.5, 1], [-0.1, 1.1]),
        ("shards", "samples_per_shard", [1], [0]),
        ("shards", "resize_short_side_px", [0], [-1]),
        ("engine", "workers", [0, 1], [-1]),
    ],
)
def test_ranges_hold_to_their_ends(section: str, name: str, sound: list[Any], unsound: list[Any]) -> None:
    for value in sound:
        assert getattr(getattr(config_of(**{section: {name: value}}), section), name) == value
    for value in unsound:
        with pytest.raises(UsageError):
            config_of(**{section: {name: value}})


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
paths = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
test_sets = st.lists(
    paths | st.fixed_dictionaries({"name": paths, "path": paths}, optional={"image_column": texts}),
    max_size=3,
    unique_by=lambda entry: entry["name"] if isinstance(entry, dict) else Path(entry).name or entry,
)
inputs = st.fixed_dictionaries(
    {"paths": st.lists(paths, min_size=1, max_size=2)},
    optional={"name": texts, "kind": st.sampled_from(["warc", "table"]), "url_column": texts},
)
configs = st.fixed_dictionaries(
    {"input": inputs | st.lists(inputs, min_size=1, max_size=3)},
    optional={
        "run": st.fixed_dictionaries({"folder": paths, "keep_work": st.booleans(), "durable": st.booleans()}),
        "text": st.fixed_dictionaries(
            {"words_at_least": st.integers(0, 20), "vocabulary_size": st.integers(1, 2**63 - 1)}
        ),
        "image": st.fixed_dictionaries(
            {"aspect_ratio_below": st.floats(1.001, 1e300), "blocked_hashes": st.lists(texts, max_size=2)}
        ),
        "fetch": st.fixed_dictionaries(
            {
                "timeout_s": st.floats(1e-300, 1e300) | st.integers(1, 100),
                "ports": st.lists(st.integers(1, 65_535), max_size=3),
            }
        ),
        "decontaminate": st.fixed_dictionaries({"test_sets": test_sets, "similarity_above": st.floats(0, 1)}),
    },
)


@given(configs)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_a_config_that_is_dumped_is_loaded_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    config = CurateConfig.from_values(values, where="here")
    text = dump(config.model_dump(mode="json"))
    path = tmp_path_factory.getbasetemp() / "round.toml"
    path.write_text(text, encoding="utf-8", newline="")
    assert CurateConfig.load(path) == config
    assert dump(CurateConfig.load(path).model_dump(mode="json")) == text


def test_test_sets_keep_their_form() -> None:
    sets = config_of(decontaminate={"test_sets": ["p", {"name": "coco", "path": "q"}]}).decontaminate.test_sets
    assert sets == ["p", curate.TestSet(name="coco", path="q")]

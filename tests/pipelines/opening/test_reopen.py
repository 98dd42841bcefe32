"""What a stage's result rests on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from altalign.data.stages import STAGES
from altalign.pipelines.opening.reopen import grounds_of, resolved
from altalign.pipelines.run.units import InputFile
from altalign.settings.curate import CurateConfig

FILES = (InputFile(0, "a.parquet", 0), InputFile(1, "b.parquet", 0))


def config(**sections: Any) -> CurateConfig:
    return CurateConfig.from_values({"input": [{"paths": ["*.parquet"], "kind": "table"}], **sections}, where="test")


def digests(settings: CurateConfig, files: tuple[InputFile, ...] = FILES) -> dict[str, str]:
    return {stage: grounds.digest for stage, grounds in grounds_of(settings, files).items()}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [stage for stage in STAGES if before[stage] != after[stage]]


SETTINGS = [
    ("input", {"input": [{"paths": ["*.parquet"], "kind": "table", "caption_column": "alt"}]}, "extract"),
    ("audit", {"audit": {"keep_dropped": False}}, "extract"),
    ("vocabulary", {"text": {"vocabulary_size": 5}}, "tables"),
    ("images a text", {"text": {"images_per_text_at_most": 11}}, "tables"),
    ("texts an image", {"image": {"texts_per_image_at_most": 11}}, "tables"),
    ("words", {"text": {"words_at_least": 4}}, "judge"),
    ("short side", {"image": {"short_side_above_px": 100}}, "fetch"),
    ("aspect ratio", {"image": {"aspect_ratio_below": 2.0}}, "fetch"),
    ("nsfw", {"image": {"nsfw": {"drop_at_or_above": 0.6}}}, "fetch"),
    ("a file that is not there", {"image": {"blocked_hashes": ["none"]}}, "fetch"),
    ("bytes", {"fetch": {"bytes_at_most": 5_000}}, "fetch"),
    ("samples", {"shards": {"samples_per_shard": 9}}, "write"),
    ("portable", {"shards": {"portable": False}}, "fetch"),
    ("embedder", {"decontaminate": {"embedder": "phash"}}, "fetch"),
    ("threshold", {"decontaminate": {"similarity_above": 0.9}}, "decontaminate"),
    ("within the pool", {"dedup": {"within_pool": "keep_one_image"}}, "decontaminate"),
]


@pytest.mark.parametrize(
    ("sections", "first"), [(sections, first) for _, sections, first in SETTINGS], ids=[name for name, _, _ in SETTINGS]
)
def test_a_setting_changes_the_digest_of_the_stage_that_reads_it_and_of_those_after_it(
    sections: dict[str, Any], first: str
) -> None:
    assert changed(digests(config()), digests(config(**sections))) == list(STAGES[STAGES.index(first) :])


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"workers": 3}},
        {"engine": {"runner": "prism"}},
        {"run": {"folder": "elsewhere", "keep_work": False}},
        {"fetch": {"threads": 3, "timeout_s": 3.5, "retries": 7}},
        {"fetch": {"connections_per_host": 3, "requests_per_host_s": 1.5}},
        {"text": {"words_at_least": 3}},  # the default, said aloud
    ],
)
def test_where_and_how_fast_a_run_goes_changes_no_digest(sections: dict[str, Any]) -> None:
    assert digests(config(**sections)) == digests(config())


def test_other_files_and_another_order_of_them_change_every_digest() -> None:
    for files in (FILES[:1], (InputFile(0, "b.parquet", 0), InputFile(1, "a.parquet", 0)), ()):
        assert changed(digests(config()), digests(config(), files)) == list(STAGES)


def named_files(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield folder / "list.txt", {"blocked_hashes": [str(folder / "list.txt")]}
    yield folder / "model.onnx", {"nsfw": {"model": str(folder / "model.onnx")}}
    yield folder / "model.toml", {"nsfw": {"model": str(folder / "model.onnx")}}


@pytest.mark.parametrize("number", range(3))
def test_the_content_of_a_file_that_settings_name_changes_the_digest_of_fetch(tmp_path: Path, number: int) -> None:
    path, image = list(named_files(tmp_path))[number]
    settings = config(image=image)
    missing = digests(settings)
    path.write_bytes(b"one")
    one = digests(settings)
    path.write_bytes(b"two")
    two = digests(settings)
    path.write_bytes(b"one")
    assert changed(missing, one) == changed(one, two) == ["fetch", "decontaminate", "write"]
    assert digests(settings) == one


def test_resolved_settings_have_defaults_and_neither_engine_nor_folder() -> None:
    text = resolved(config(engine={"workers": 3}, run={"folder": "elsewhere"}))
    assert "words_at_least = 3" in text
    assert "elsewhere" not in text
    assert "[engine]" not in text
    assert text == resolved(config())

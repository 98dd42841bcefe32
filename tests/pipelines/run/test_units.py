"""Units are done once; and what a stage's result rests on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from altalign import storage
from altalign.curation import CurateConfig
from altalign.errors import UnreadableError
from altalign.pipelines.run.units import STAGES, Basis, Facts, InputFile, Run, Unit, map_unit, resolved

FILES = (InputFile(0, "a.parquet", 0), InputFile(1, "b.parquet", 0))


def config(**sections: Any) -> CurateConfig:
    return CurateConfig.from_values({"input": [{"paths": ["*.parquet"], "kind": "table"}], **sections}, where="test")


def digests(settings: CurateConfig, files: tuple[InputFile, ...] = FILES) -> dict[str, str]:
    return {stage: grounds.digest for stage, grounds in Basis(settings, files).of.items()}


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [stage for stage in STAGES if before[stage] != after[stage]]


# Units ---------------------------------------------------------------------------------------------------------------


def test_a_unit_is_done_once_and_its_mark_answers_from_then_on(tmp_path: Path) -> None:
    run, calls = Run(str(tmp_path), config(), FILES), []

    def work(of: Run, unit: Unit) -> Facts:
        calls.append(unit)
        return {"rows": 3, "list": [1, [2, "漢"]]}

    unit = {"name": "000001-00002", "rows": 3}
    first = map_unit(run, "judge/units", unit, work)
    second = map_unit(run, "judge/units", unit, work)
    assert calls == [unit]
    assert first == {"rows": 3, "list": [1, [2, "漢"]]}
    assert first.items() <= second.items()
    assert run.finished("judge/units") == ["000001-00002"]
    assert map_unit(run, "tables/units", unit, work).items() >= first.items()  # another step has marks of its own
    assert calls == [unit, unit]


def test_a_unit_without_facts_of_its_own_is_done_once_too(tmp_path: Path) -> None:
    run, calls = Run(str(tmp_path), config(), FILES), []
    for _ in range(2):
        map_unit(run, "write", {"name": "00000"}, lambda *_: calls.append(1) or {})
    assert calls == [1]


def test_work_that_fails_leaves_no_mark_and_is_done_again(tmp_path: Path) -> None:
    run = Run(str(tmp_path), config(), FILES)

    def fail(_: Run, unit: Unit) -> Facts:
        storage.write_bytes(run.work("extract", f"{unit['name']}.parquet"), b"half of it")
        raise UnreadableError("cut")

    with pytest.raises(UnreadableError):
        map_unit(run, "extract", {"name": "000000"}, fail)
    assert run.facts("extract", "000000") == {}
    assert run.finished("extract") == []
    assert map_unit(run, "extract", {"name": "000000"}, lambda *_: {"rows": 1})["rows"] == 1
    assert run.facts("extract", "000000")["rows"] == 1


def test_finished_units_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    run = Run(str(tmp_path), config(), FILES)
    names = ["000002", "1000000", "000010-00001", "000002-00000", "000002-100000", "000002-99999"]
    for name in names:
        map_unit(run, "extract", {"name": name}, lambda _, unit: {"of": unit["name"]})
    for name in ("done", "._000002", "notes"):  # what no unit is
        storage.write_json(run.mark("extract", name), {})
    expected = ["000002", "000002-00000", "000002-99999", "000002-100000", "000010-00001", "1000000"]
    assert run.finished("extract") == expected
    assert [(name, facts["of"]) for name, facts in run.all_facts("extract")] == [(name, name) for name in expected]


# What results rest on ------------------------------------------------------------------------------------------------

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
    ("portable", {"shards": {"portable": False}}, "write"),
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
        {"engine": {"runner": "prism", "shuffle": "beam"}},
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

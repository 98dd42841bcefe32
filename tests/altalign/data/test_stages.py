from pathlib import Path

import pytest

from altalign.data.stages import STAGES, maker, own_files
from altalign.errors import DamagedError, UnreadableError


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("work/judge/units/000000-00000.survivors", "judge"),
        ("work/judge/done.json", "judge"),
        ("work/temporary/x", None),
        ("tables/vocabulary.npy", "tables"),
        ("dropped/judge/000000-00000.parquet", "judge"),
        ("dropped/image/00000-00000.parquet", "fetch"),
        ("audit/histograms.json", "tables"),
        ("audit/image_values.parquet", "fetch"),
        ("audit/text_measures.parquet", "judge"),
        ("audit/near_duplicates/gallery.parquet", "decontaminate"),
        ("audit/failed.parquet", "write"),
        ("shards/00000.tar", "write"),
        ("summary.json", "write"),
        ("manifest.json", "write"),
        ("config.toml", "write"),
        ("run.json", None),
        ("log/lock", None),
        ("tables.txt", None),
    ],
)
def test_every_file_of_a_run_has_the_stage_that_writes_it(path: str, stage: str | None) -> None:
    assert maker(path) == stage
    assert stage is None or stage in STAGES


@pytest.mark.parametrize("folder", ["run", "./run", "run/", "a: b/run"])
def test_trouble_with_a_file_of_the_run_is_damage_and_says_what_makes_it_anew(folder: str) -> None:
    with pytest.raises(DamagedError) as caught, own_files(folder):
        raise UnreadableError(
            f"{folder.rstrip('/')}/tables/vocabulary.npy: cannot be read as Parquet (x: y); repair or remove the file"
        )
    named = f"{folder.rstrip('/')}/tables/vocabulary.npy"
    assert (
        str(caught.value)
        == f"{named}: damaged: cannot be read as Parquet (x: y); `altalign curate` with --rerun tables makes it anew"
    )


def test_a_file_that_is_not_there_and_its_absolute_name_are_of_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(
            DamagedError,
            match=r"^run/run.json: damaged: it is not there; `altalign curate` with --restart runs everything anew$",
        ),
        own_files("run"),
    ):
        (tmp_path / "run" / "run.json").read_bytes()


@pytest.mark.parametrize(
    "error",
    [
        UnreadableError("input/x.parquet: cannot be read"),
        FileNotFoundError(2, "No such file", "running/x"),
        FileNotFoundError(),
    ],
)
def test_trouble_with_other_files_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, own_files("run"):
        raise error
    assert caught.value is error

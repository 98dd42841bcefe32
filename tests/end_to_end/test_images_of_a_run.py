"""Archives and a run's own files that are lost, cut or changed while images are fetched and written, and a machine
without memory.
"""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from altalign.cli import main
from altalign.filters import pixels
from altalign.pipelines import curate
from altalign.pipelines.stages import fetch, write
from tests.support.curations import fails, flip, tree
from tests.support.pictures import encoded
from tests.support.tars import tar

pytestmark = pytest.mark.faults

CONFIG = '[run]\nfolder = "run"\n\n[[input]]\nkind = "webdataset"\npaths = ["*.tar"]\n\n[engine]\nworkers = 1\n'


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar of images, and a run of it up to the stage `judge`."""
    folder = tmp_path_factory.mktemp("judged")
    members: list[tuple[str, bytes]] = []
    for number in range(12):
        image = Image.effect_noise((230 + number, 240), 50).convert("RGB")
        row = {"url": f"https://img.example/{number}", "caption": f"noise of the number {number}"}
        members.append((f"{number:03}.png", encoded(image, "PNG" if number % 3 else "JPEG")))
        members.append((f"{number:03}.json", json.dumps(row).encode()))
    (folder / "images.tar").write_bytes(tar(members))
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml", "--until", "judge"]) == 0
    return folder


@pytest.fixture
def folder(judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(judged, tmp_path, dirs_exist_ok=True)  # with the times of files
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("lost", "gone since the run began; put it back and run the same command again, it continues"),
        ("cut", "changed since the run began to read it; put the old file back, or give --rerun"),
        ("overwritten", "changed since the run began to read it; put the old file back, or give --rerun"),
    ],
)
@pytest.mark.parametrize(("stage", "step"), [("fetch", "fetch/units"), ("write", "write")])
def test_an_archive_that_changes_while_images_are_read_is_named_and_restored_continues(
    folder: Path,
    stage: str,
    step: str,
    what: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before `fetch`, and between it and `write`, which reads images again that shards hold as they are there."""
    tar, kept, (steps, conclude) = folder / "images.tar", folder / "images.tar.kept", curate.PIPELINE[stage]
    real = {"fetch": fetch.fetch, "write": write.write}[stage]

    def harmed_first(run, unit):
        tar.rename(kept)
        if what != "lost":
            data = kept.read_bytes()
            tar.write_bytes(data[:20_000] if what == "cut" else bytes(len(data)))
        return real(run, unit)

    changed = [curate.each(each.marks, each.plan, harmed_first) if each.marks.step == step else each for each in steps]
    with monkeypatch.context() as patch:
        patch.setitem(curate.PIPELINE, stage, (changed, conclude))
        error = fails(capsys, 1)
    assert error == f"images.tar: {said}"
    kept.rename(tar)
    assert main(["curate", "config.toml"]) == 0
    assert (folder / "run" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("stage", "setting"),
    [("write", "samples_per_shard=3"), ("fetch", "portable=false"), ("fetch", "resize_short_side_px=210")],
)
def test_images_of_a_finished_run_are_in_its_shards_alone_and_a_rerun_has_them(
    folder: Path, stage: str, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", "config.toml"]) == 0
    assert not list((folder / "run" / "work" / "fetch").rglob("*.images"))
    capsys.readouterr()
    assert main(["curate", "config.toml", "--set", f"shards.{setting}", "--rerun"]) == 0
    assert ("fetch: " in capsys.readouterr().err) == (stage == "fetch")
    assert main(["curate", "config.toml", "--set", f"shards.{setting}", "--set", "run.folder=fresh"]) == 0
    assert tree(folder / "run") == tree(folder / "fresh")


def test_a_shard_that_is_damaged_is_repaired_from_the_input(folder: Path) -> None:
    assert main(["curate", "config.toml"]) == 0
    before = tree(folder / "run")
    flip(folder / "run" / "shards" / "00000.tar", 5_000)
    assert main(["curate", "run/config.toml", "--repair"]) == 0
    assert tree(folder / "run") == before


@pytest.mark.parametrize("harm", ["lost", "cut", "overwritten"])
def test_fetched_images_that_are_not_as_they_were_are_named_and_made_anew(
    folder: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lost blob is as good as one that `write` has let go: its images are encoded once more."""
    assert main(["curate", "config.toml", "--until", "fetch"]) == 0
    before = tree(folder / "run")
    blob = max((folder / "run" / "work" / "fetch" / "units").glob("*.images"), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[-2_000] ^= 1
    blob.unlink()
    if harm != "lost":
        blob.write_bytes(data if harm == "overwritten" else data[:-1])
    why = {
        "cut": f"it has {len(data) - 1:,} bytes, where {len(data):,} were written",
        "overwritten": "its XXH3 is",
    }
    capsys.readouterr()
    assert main(["curate", "config.toml"]) == 0
    said = capsys.readouterr().err
    assert harm == "lost" or f"{blob.relative_to(folder)}: {why[harm]}" in said
    assert ("; it is made anew" in said) == (harm != "lost")
    after = tree(folder / "run")
    assert after | before == after


def test_a_machine_without_memory_for_an_image_says_which_and_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    repair = "give it more, or set [engine] workers or [image] pixels_at_most lower"
    for step in ("_upright", "to_stored"):  # while it is measured, and while the shard's image is made of it
        with monkeypatch.context() as patch:
            patch.setattr(pixels, step, no_memory)
            error = fails(capsys, 1)
        assert error.startswith("https://img.example/"), step
        assert "no memory to decode an image of " in error
        assert error.endswith(repair)
    assert main(["curate", "config.toml"]) == 0

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
from altalign.pipelines.stages import fetch
from tests.support.curations import fails, tree
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
    ],
)
def test_an_archive_that_is_lost_or_cut_while_images_are_read_is_named_and_restored_continues(
    folder: Path, what: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tar, kept = folder / "images.tar", folder / "images.tar.kept"

    def harmed_first(run, unit):
        tar.rename(kept)
        if what == "cut":
            tar.write_bytes(kept.read_bytes()[:20_000])
        return real(run, unit)

    real = fetch.fetch
    with monkeypatch.context() as patch:
        patch.setattr("altalign.pipelines.curate.PIPELINE", _with_fetch(harmed_first))
        error = fails(capsys, 1)
    assert error == f"images.tar: {said}"
    kept.rename(tar)
    assert main(["curate", "config.toml"]) == 0
    assert (folder / "run" / "manifest.json").exists()


def _with_fetch(work):
    from altalign.pipelines import curate

    steps, conclude = curate.PIPELINE["fetch"]
    changed = [curate.each(step.marks, step.plan, work) if step.marks.step == "fetch/units" else step for step in steps]
    return {**curate.PIPELINE, "fetch": (changed, conclude)}


@pytest.mark.parametrize("harm", ["lost", "cut", "overwritten"])
def test_fetched_images_that_are_not_as_they_were_are_named_and_made_anew(
    folder: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["curate", "config.toml", "--until", "fetch"]) == 0
    before = tree(folder / "run")
    blob = max((folder / "run" / "work" / "fetch" / "units").glob("*.images"), key=lambda path: path.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[-2_000] ^= 1
    blob.unlink()
    if harm != "lost":
        blob.write_bytes(data if harm == "overwritten" else data[:-1])
    why = {
        "lost": "it is not there",
        "cut": f"it has {len(data) - 1:,} bytes, where {len(data):,} were written",
        "overwritten": "its XXH3 is",
    }
    capsys.readouterr()
    assert main(["curate", "config.toml"]) == 0
    said = capsys.readouterr().err
    assert f"{blob.relative_to(folder)}: {why[harm]}" in said
    assert "; it is made anew" in said
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

"""A calibration of a run from end to end: what it writes, that nobody is misled by it, that a curation takes it, and
its mistakes in one line.
"""

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.cli import main
from altalign.machine.threads import in_threads
from altalign.pipelines.images import calibration_files
from tests.pipelines.images.test_embedders import TOML, WEIGHTS, needs_onnx, save_onnx
from tests.shared_data import SHARED, needs_shared
from tests.support.curations import tree
from tests.support.pictures import encoded

pytestmark = pytest.mark.runs

CONFIG = """
[run]
folder = "run"

[[input]]
kind = "table"
paths = ["pool.parquet"]
url_column = ""
image_column = "image"

[text]
words_at_least = 1
images_per_text_at_most = 100_000

[image]
short_side_above_px = 20

[decontaminate]
test_sets = [{name = "mine", path = "tests.parquet"}]
"""
POOL, TESTS, FLAT = 290, 230, 5
FILES = ["calibration.json", "centroids.npy", "map_matrix.npy", "map_mean.npy", "report.html"]


def jpeg(pixels: np.ndarray, quality: int = 90) -> bytes:
    return encoded(Image.fromarray(pixels), "JPEG", quality=quality)


def blotches(seed: int) -> np.ndarray:
    """A picture of few soft shapes: two of them may well look alike."""
    small = np.random.default_rng(seed).integers(0, 256, (3, 4, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(small).resize((96, 72), Image.Resampling.BICUBIC))


def write_images(folder: Path, pool: list[bytes], tests: list[bytes]) -> None:
    pq.write_table(
        pa.table({"caption": [f"picture number {i}" for i in range(len(pool))], "image": pool}), folder / "pool.parquet"
    )
    pq.write_table(pa.table({"image": tests}), folder / "tests.parquet")
    (folder / "config.toml").write_text(CONFIG, encoding="utf-8")


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run up to `fetch`: unlike pictures, flat ones, the bytes of one test image, and the bytes of one picture
    thrice.
    """
    folder = tmp_path_factory.mktemp("fetched")
    flat = [jpeg(np.full((64, 64 + i, 3), 40 * i, np.uint8)) for i in range(FLAT)]
    tests = [jpeg(blotches(10_000 + i)) for i in range(TESTS)]
    pool = [*(jpeg(blotches(i)) for i in range(POOL)), *flat, tests[3]]
    write_images(folder, pool, [*tests, flat[0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["curate", "config.toml", "--until", "fetch"]) == 0
    return folder


@pytest.fixture(scope="module")
def calibrated(fetched: Path) -> Path:
    """A calibration of that run, made with one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(fetched)
        assert main(["calibrate", "run", "calibrated", "--sample", "64", "--set", "engine.workers=1"]) == 0
    return fetched / "calibrated"


@pytest.fixture
def folder(fetched: Path, calibrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(fetched, tmp_path, dirs_exist_ok=True)  # with the times of files
    monkeypatch.chdir(tmp_path)
    return tmp_path


def facts_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "calibration.json").read_text(encoding="utf-8"))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fails(capsys: pytest.CaptureFixture[str], *args: str, code: int = 2) -> str:
    """The one line that `altalign calibrate` fails with."""
    capsys.readouterr()
    assert main(["calibrate", *args]) == code
    out, error = capsys.readouterr()
    said = [line for line in error.splitlines() if line.startswith("altalign: ")]
    assert out == ""
    assert len(said) == 1, error
    return said[0].removeprefix("altalign: ")


@pytest.mark.everyday
def test_what_is_written_holds_what_was_measured(fetched: Path, calibrated: Path) -> None:
    facts = facts_of(calibrated)
    assert sorted(path.name for path in calibrated.iterdir()) == FILES
    assert facts["pool_images"] == POOL + 1
    assert (facts["test_sets"], facts["flat_test_images"]) == ({"mine": TESTS + 1}, 1)
    assert (facts["training_images"], facts["copied"]) == (32, 32)
    assert facts["test_images_found"]["comparisons"] == (POOL + 1) * TESTS
    assert facts["false_positives_expected"] <= facts["false_positives_at_most"] == 1e-3
    assert len(facts["recall"]) == 29
    assert {share["asked"] for share in facts["recall"].values()} == {32}
    assert facts["recall"]["jpeg 75"]["found"] == 32
    assert "crop 20 %" in facts["not_covered"]
    loaded = calibration_files.load(str(calibrated))
    assert loaded.map is not None
    assert loaded.similarity_above == facts["similarity_above"]
    text = "".join(path.read_text(encoding="utf-8") for path in calibrated.iterdir() if path.suffix != ".npy")
    assert str(fetched) not in text  # nothing of the machine


def test_the_threshold_is_the_smallest_within_the_budget(calibrated: Path) -> None:
    facts = facts_of(calibrated)
    line = facts["test_images_found"]["line"]
    expected = [
        TESTS * np.exp(line["intercept"] + line["slope"] * np.log((1 - above) / 2))
        for above in (facts["similarity_above"], facts["similarity_above"] - 0.002)
    ]
    decoys = facts["decoys_found"]["line"]
    if decoys is None or decoys["intercept"] < line["intercept"]:
        assert expected[0] <= 1e-3 < expected[1]


def test_the_terminal_says_what_is_not_covered_at_80_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(folder / "run")
    assert main(["calibrate", "run", "out", "--sample", "64", "--false-positives", "1e-2"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    shares = [float(share) for share in re.findall(r"│\s+([\d.]+)%\s+│\s+[\d.]+% to", out)]
    assert len(shares) == 29
    assert shares == sorted(shares)  # the worst first
    said = " ".join(out.split())
    lost = said[said.index("NOT COVERED") :]
    assert all(f"{name} (" in lost for name in facts_of(folder / "out")["not_covered"])
    assert "Such copies of test images stay in the data." in lost
    # a larger budget
    assert facts_of(folder / "out")["similarity_above"] < facts_of(folder / "calibrated")["similarity_above"]
    assert tree(folder / "run") == before


def test_with_more_threads_and_after_a_kill_it_has_the_same_bytes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ["calibrate", "run", "again", "--sample", "64", "--set", "engine.workers=4"]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(calibration_files, "save", killed)  # when all but it is written
        assert main(again) == 130
    assert [path.name for path in (folder / "again").iterdir()] == ["report.html"]
    (folder / "again" / "centroids.npy.partial-12345678").write_bytes(b"")
    for _ in range(2):  # one that is there is made anew
        assert main(again) == 0
        assert bytes_of(folder / "again") == bytes_of(folder / "calibrated")


def test_a_run_of_a_cluster_is_calibrated_on_in_the_threads_of_this_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    facts["engine"] = {**facts["engine"], "runner": "spark", "workers": 0}
    (folder / "run" / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    monkeypatch.setattr("altalign.settings.curate.cores", lambda: 3)
    asked: list[int] = []
    monkeypatch.setattr(
        "altalign.pipelines.near.calibration.in_threads",
        lambda work, items, count: (asked.append(count), in_threads(work, items, count))[1],
    )
    assert main(["calibrate", "run", "again", "--sample", "64"]) == 0
    assert set(asked) == {3}
    assert bytes_of(folder / "again") == bytes_of(folder / "calibrated")


def test_the_mirrored_view_is_another_view_and_finds_mirrored_copies(folder: Path) -> None:
    assert main(["calibrate", "run", "both", "--sample", "64", "--set", "decontaminate.mirrored=true"]) == 0
    one, both = facts_of(folder / "calibrated"), facts_of(folder / "both")
    assert (one["views"], both["views"]) == (1, 2)
    assert one["recall"]["mirrored"]["found"] < 16
    assert both["recall"]["mirrored"]["found"] == 32
    assert "mirrored" in one["not_covered"]
    assert "mirrored" not in both["not_covered"]
    assert both["similarity_above"] > one["similarity_above"]


def test_a_curation_takes_the_calibration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tests = pq.read_table(folder / "tests.parquet")["image"].to_pylist()
    table = pq.read_table(folder / "pool.parquet")
    recoded = [jpeg(np.asarray(Image.open(io.BytesIO(tests[i])).resize((48, 36))), quality=60) for i in range(10, 15)]
    more = pa.table({"caption": [f"copy {i}" for i in range(5)], "image": recoded})
    pq.write_table(pa.concat_tables([table, more]), folder / "pool.parquet")
    assert main(["curate", "config.toml", "--restart", "--set", 'decontaminate.calibration="calibrated"']) == 0
    used = folder / "run" / "audit" / "near_duplicates"
    for name in ("map_mean.npy", "map_matrix.npy", "centroids.npy"):
        assert (used / name).read_bytes() == (folder / "calibrated" / name).read_bytes()
    assert facts_of(used)["similarity_above"] == facts_of(folder / "calibrated")["similarity_above"]
    dropped = pa.concat_tables(
        [pq.read_table(path) for path in (folder / "run" / "dropped" / "decontaminate").glob("*.parquet")]
    )
    assert {f"copy {i}" for i in range(5)} | {f"picture number {POOL + FLAT}"} <= set(dropped["caption"].to_pylist())
    assert len(dropped) < 15
    assert min(dropped["similarity"].to_pylist()) > facts_of(used)["similarity_above"]
    # Another calibration is another ground of the stage.
    other = facts_of(folder / "calibrated") | {"similarity_above": 0.9}
    (folder / "calibrated" / "calibration.json").write_text(json.dumps(other), encoding="utf-8")
    capsys.readouterr()
    assert main(["curate", "config.toml", "--set", 'decontaminate.calibration="calibrated"']) == 2
    assert "calibrated/c" in capsys.readouterr().err


def test_phash_is_calibrated_without_a_map(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its cosines are steps of a sixteenth: a pool that has enough pairs at four of them would take long.
    monkeypatch.setattr("altalign.dedup.thresholds._FIT_POINTS_AT_LEAST", 2)
    monkeypatch.setattr("altalign.dedup.thresholds._FIT_PAIRS_AT_LEAST", 2)
    assert (
        main(
            ["curate", "config.toml", "--until", "fetch", "--rerun", "fetch", "--set", 'decontaminate.embedder="phash"']
        )
        == 0
    )
    assert main(["calibrate", "run", "calibrated", "--sample", "64"]) == 0  # over one with a map, whose files go
    assert sorted(path.name for path in (folder / "calibrated").iterdir()) == [
        name for name in FILES if not name.startswith("map")
    ]
    facts = facts_of(folder / "calibrated")
    assert (facts["embedder"], facts["is_mapped"], facts["training_images"]) == ("phash", False, 0)
    assert facts["recall"]["jpeg 75"]["found"] > 24
    capsys.readouterr()
    # dct again
    assert main(["curate", "config.toml", "--rerun", "fetch", "--set", 'decontaminate.calibration="calibrated"']) == 2
    assert 'made with embedder = "phash", here it is "dct"' in capsys.readouterr().err


def test_test_sets_can_be_given_beside_those_of_the_run(folder: Path) -> None:
    (folder / "more").mkdir()
    for i in range(4):
        (folder / "more" / f"<b>{i}.jpg").write_bytes(jpeg(blotches(20_000 + i)))
    assert main(["calibrate", "run", "out", "--sample", "64", "--test-set", "few=more"]) == 0
    assert facts_of(folder / "out")["test_sets"] == {"mine": TESTS + 1, "few": 4}
    assert "<b>" not in (folder / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "out"], "nowhere: no such run folder; give the [run] folder of a curation"),
        (
            ["calibrated", "out"],
            "calibrated: no run of altalign (it has no run.json); give the [run] folder of a curation",
        ),
        (
            ["run", "out", "--set", "decontaminate.test_sets=[]"],
            "run: no test sets, and a threshold depends on how many test images there are",
        ),
        (
            ["run", "out", "--set", 'decontaminate.embedder="phash"'],
            "run: its stage fetch was made with decontaminate.embedder = 'dct', now 'phash'",
        ),
        (["run", "out", "--sample", "63"], "--sample 63: too few; give 64 to 20,000 images"),
        (["run", "out", "--sample", "20001"], "--sample 20001: too many; give 64 to 20,000 images"),
        (["run", "out", "--false-positives", "0"], "--false-positives 0: not a number above 0"),
        (["run", "out", "--false-positives", "nan"], "--false-positives nan: not a number above 0"),
        (["run", "out", "--pairs", "pool.parquet"], "--pairs and --images belong together"),
        (
            ["run", "out", "--pairs", "pool.parquet", "--images", "tests.parquet"],
            '--pairs pool.parquet: no column "image_a" (there are caption, image)',
        ),
        (["run", "out", "--test-set", "mine"], "--test-set mine: not of the form NAME=PATH"),
        (["run", "out", "--test-set", "more=nowhere"], "[decontaminate] test_sets: nothing is at 'nowhere'"),
        (["run", "run/audit/mine"], "run/audit/mine: in the run's own folder run"),
        (["run", "config.toml"], "config.toml: a file, where the folder of a calibration is meant"),
        (
            ["run", "out", "--", "--job_endpoint=host:1"],
            "-- --job_endpoint=host:1: calibrating runs in this process, and has no flags for Beam",
        ),
        (["run", "."], ".: a folder that is no calibration (it has no calibration.json); choose another, or empty it"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert fails(capsys, *arguments).startswith(said)
    assert not (folder / "out").exists()


def test_a_run_whose_images_are_not_fetched_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curate", "config.toml", "--until", "judge", "--rerun", "fetch"]) == 0
    assert fails(capsys, "run", "out").startswith(
        "run: its images are not fetched yet; `altalign curate` with --until fetch does it"
    )
    shutil.rmtree(folder / "run" / "work")
    assert fails(capsys, "run", "out").startswith("run: work/ was deleted")


def test_a_run_that_another_version_began_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8"))
    facts["stages"]["extract"]["reads"]["work_version"] -= 1
    facts["stages"]["extract"]["digest"] = "another"
    (folder / "run" / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    assert "its stage extract was made with work_version = " in fails(capsys, "run", "out")
    assert not (folder / "out").exists()


@needs_onnx
def test_a_model_that_changed_since_the_images_were_fetched_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    (folder / "model.toml").write_text(TOML, encoding="utf-8")
    save_onnx(folder / "model.onnx", rng.normal(size=WEIGHTS.shape).astype(np.float32))
    assert (
        main(
            [
                "curate",
                "config.toml",
                "--until",
                "fetch",
                "--rerun",
                "fetch",
                "--set",
                'decontaminate.embedder="onnx:model.onnx"',
            ]
        )
        == 0
    )
    save_onnx(folder / "model.onnx", rng.normal(size=WEIGHTS.shape).astype(np.float32))
    assert fails(capsys, "run", "out").startswith("run: its stage fetch was made with file model.onnx = ")
    assert not (folder / "out").exists()


def test_an_image_of_the_run_that_changed_is_damage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blob = next((folder / "run" / "work" / "fetch" / "gathered").glob("*.images"))
    blob.write_bytes(blob.read_bytes()[::-1])
    error = fails(capsys, "run", "out", "--sample", "64", code=1)
    assert error.startswith(f"{blob.relative_to(folder)}: damaged: the image at byte ")
    assert error.endswith("--rerun fetch makes it anew")


def test_too_few_images_to_count_false_positives_are_said_to_be_too_few(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = pq.read_table(folder / "tests.parquet").slice(0, 2)
    pq.write_table(tests, folder / "two.parquet")
    two = ["--set", 'decontaminate.test_sets=["two.parquet"]']
    assert "too few to fit a rate of false positives" in fails(capsys, "run", "out", "--sample", "64", *two, code=1)
    assert not [*(folder / "out").rglob("*copies*")]  # said before copies are made
    pq.write_table(pa.table({"image": [jpeg(np.full((64, 64, 3), 9, np.uint8))]}), folder / "two.parquet")
    assert fails(capsys, "run", "out", "--sample", "64", *two).startswith("1 test image, and none that is not flat")


@needs_shared
@pytest.mark.parametrize("name", ["clothing", "openclipart"])
def test_real_images(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pq.read_table(SHARED / f"{name}.parquet", columns=["image_bytes"])["image_bytes"].to_pylist()[::6]
    write_images(tmp_path, data[:350], data[350:])
    monkeypatch.chdir(tmp_path)
    assert main(["curate", "config.toml", "--until", "fetch"]) == 0
    pairs = [f"--{what}={SHARED}/near_duplicates_{what}.parquet" for what in ("pairs", "images")]
    assert main(["calibrate", "run", "out", "--sample", "64", *pairs]) == 0
    facts = facts_of(tmp_path / "out")
    assert 0.8 < facts["similarity_above"] < 0.99
    assert facts["is_extrapolated"]
    assert all(facts["recall"][copy]["found"] >= 30 for copy in ("jpeg 75", "half the size", "64 px", "grey"))
    assert {"crop 20 %", "crop 10 %", "mirrored"} <= set(facts["not_covered"])
    labelled = facts["labelled_pairs"]
    assert (labelled["recall"]["found"], labelled["recall"]["asked"], labelled["left_out"]) == (27, 31, 2)
    assert labelled["precision"]["found"] == labelled["precision"]["asked"]
    # half of 50 below the threshold, and what is above
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8").count("<figure>") >= 25

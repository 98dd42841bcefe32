"""The guides to reading shards and runs are true: their blocks of other people's programs run on a finished run of the
demo web (`make test-readers`).
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import made_once
from tests.docs.blocks import ROOT, Block, blocks, prints

NOTE = "run by make test-readers"
GUIDES = [ROOT / "docs" / "guides" / name for name in ("read-the-shards.md", "use-it-from-python.md")]
BLOCKS = [block for guide in GUIDES for block in blocks(guide) if block.note == NOTE]

# The webdataset that open_clip's trainer asks for, beside the newer one of the environment; `make test-readers` puts it
# there.
OLDER_WEBDATASET = ROOT / ".cache" / "webdataset-of-open-clip"

# Readers that want older packages than the lock has, Daft among them.
LOADERS = ROOT / ".cache" / "loaders"

# LightlyStudio wants an older duckdb.
LIGHTLY_STUDIO = ROOT / ".cache" / "lightly-studio"
SOME_SAMPLES = """
some = sorted(dataset, key=lambda each: each.file_name)[::40]
print(json.dumps([[each.file_name, [*each.tags], each.captions, each.metadata["words"]] for each in some]))
"""

# All batches of the trainer's own loader, for the arguments of the guide's command; a model is not trained here.
BATCHES_OF_OPEN_CLIP = """
import sys
import open_clip
from open_clip_train.data import get_data
from open_clip_train.params import parse_args
args = parse_args(sys.argv[1:])
args.world_size, args.rank, args.distributed = 1, 0, False
prepare = open_clip.image_transform(32, is_train=True)
loader = get_data(args, (prepare, prepare), tokenizer=open_clip.get_tokenizer(args.model))["train"].dataloader
sizes = [(len(images), len(texts)) for images, texts in loader]
assert set(sizes) == {(args.batch_size, args.batch_size)}, sizes
assert len(sizes) * args.batch_size >= args.train_num_samples, sizes
"""


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the demo's run, and room for what readers keep."""
    for name in ("torch", "webdataset", "datasets", "open_clip_train"):
        pytest.importorskip(name, reason=f"{name} is not installed; `make test-readers` has it")
    return made_once.linked(request.getfixturevalue("checkout"), tmp_path_factory.mktemp("readers") / "checkout")


def run(code: str, arguments: list[str], folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), **environment}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


def test_the_guides_count_alike_where_other_readers_are_and_where_they_are_not() -> None:
    text = "".join(guide.read_text(encoding="utf-8") for guide in GUIDES)
    # of a block that every test run runs
    (counted,) = re.findall(r"^(\d+) of (\d+) are 300 px wide or more$", text, re.MULTILINE)
    elsewhere = re.findall(r"(?:^|--train-num-samples )(\d+)(?= samples| int32| images are| \\)", text, re.MULTILINE)
    assert len(elsewhere) == 7
    assert set(elsewhere) == set(counted)


@pytest.mark.guides
@pytest.mark.filterwarnings("ignore")  # of the imports that only ask whether a reader is there
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_a_block_of_the_guide_runs_and_prints_what_it_says(finished: Path, block: Block) -> None:
    if "import daft" in block.text:
        if not (LOADERS / "daft").is_dir():
            pytest.skip(f"no Daft in {LOADERS}: make test-readers")
        done = run(block.text, [], finished, PYTHONPATH=str(LOADERS), DO_NOT_TRACK="true")
    elif block.kind == "python":
        done = run(block.text, [], finished)
    else:
        if not OLDER_WEBDATASET.is_dir():
            pytest.skip(
                f"{OLDER_WEBDATASET} is not there; `make test-readers` puts the webdataset there that open_clip asks "
                "for"
            )
        python, dash_m, module, *arguments = shlex.split(block.text.replace("\\\n", " "))
        assert (python, dash_m, module) == ("python", "-m", "open_clip_train.main")
        done = run(BATCHES_OF_OPEN_CLIP, arguments, finished, PYTHONPATH=str(OLDER_WEBDATASET))
    assert done.returncode == 0, done.stderr
    assert prints(block, done.stdout), done.stdout


@pytest.mark.guides
@pytest.mark.skipif(not LIGHTLY_STUDIO.is_dir(), reason=f"no LightlyStudio in {LIGHTLY_STUDIO}: make test-readers")
def test_lightly_studio_has_what_the_run_kept_and_pictures_of_what_it_dropped(checkout: Path, tmp_path: Path) -> None:
    folder = made_once.linked(checkout, tmp_path / "checkout")
    program = (ROOT / "examples" / "lightly_studio.py").read_text(encoding="utf-8")
    done = run(program + SOME_SAMPLES, [], folder, PYTHONPATH=str(LIGHTLY_STUDIO), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    demo = folder / "runs" / "demo"
    kept = [row for path in (demo / "shards").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    sampled = pq.read_table(demo / "audit" / "samples.parquet").to_pylist()
    dropped = [row for row in sampled if row["picture"] and row["reason"] != "kept"]
    expected = [[f"{row['key']}.jpeg", ["kept"], [row["caption"]], row["words"]] for row in kept]
    expected += [[f"{row['key']}.webp", [row["reason"]], [row["caption"]], row["words"]] for row in dropped]
    assert dropped
    assert json.loads(done.stdout.splitlines()[-1]) == sorted(expected)[::40]

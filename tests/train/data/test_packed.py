"""Training on tars and tables that no curation has made."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import cli
from altalign.data.schema import SCHEMA_VERSION
from altalign.train.data import packed
from altalign.train.data.runs import Runs
from altalign.train.data.samples import Samples
from altalign.train.settings.training import DataSettings
from tests.support.run_folders import picture
from tests.support.tars import tar
from tests.train.test_training_run import weights, written


def inputs(folder: Path, number: int = 12) -> dict[str, Any]:
    """A tar of as many pairs, some in .txt and some in .json, and a table of others."""
    members: dict[str, bytes] = {}
    for n in range(number):
        caption = f"caption {n} of a kite"
        members[f"{n}.jpg"] = picture(n)
        members |= {f"{n}.txt": caption.encode()} if n % 2 else {f"{n}.json": json.dumps({"caption": caption}).encode()}
    members["text.jpg"], members["text.txt"] = b"no image", b"a caption"
    (folder / "a.tar").write_bytes(tar(members.items()))
    table = {
        "picture": [picture(100 + n) for n in range(number)],
        "said": [[f"table {n}", "twice"] for n in range(number)],
    }
    pq.write_table(pa.table(table), folder / "b.parquet")
    return {
        "runs": [],
        "files": [str(folder / "*.tar"), str(folder / "*.parquet")],
        "image_column": "picture",
        "caption_column": "said",
    }


def test_a_dry_run_knows_no_epochs_of_what_is_not_packed_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", written(tmp_path, data=inputs(tmp_path)), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "and what tars and tables hold, which are packed first 8 steps of 16 pairs " in said
    assert "epochs" not in said


def test_every_pair_is_packed_once_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    chosen, said = DataSettings.from_values(inputs(tmp_path), where="test"), []
    folder = packed.pack(str(tmp_path / "packed"), chosen, said.append)
    samples = Samples.open(str(tmp_path / "index"), [folder])
    assert len(samples) == 12 + 24
    found = set(samples.read(samples.pairs(np.arange(36))))
    assert (picture(3), "caption 3 of a kite") in found
    assert (picture(4), "caption 4 of a kite") in found
    assert {(picture(111), "table 11"), (picture(111), "twice")} < found
    assert any("they have no lineage" in line for line in said)
    assert "left out: 1 rows with no image by its first bytes" in said
    again: list[str] = []
    assert packed.pack(str(tmp_path / "packed"), chosen, again.append) == folder
    assert not again
    mark = tmp_path / "packed" / "packed.json"  # as of an altalign with another schema
    mark.write_text(mark.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 3'))
    packed.pack(str(tmp_path / "packed"), chosen, again.append)
    assert again == said


def test_an_image_with_several_captions_is_packed_once_and_one_of_them_is_drawn(tmp_path: Path) -> None:
    chosen = DataSettings.from_values({**inputs(tmp_path), "captions": "drawn"}, where="test")
    folder = packed.pack(str(tmp_path / "packed"), chosen, lambda _: None)
    samples = Samples.open(str(tmp_path / "index"), Runs([folder], chosen))
    assert (len(samples), samples.draws) == (36, {"packed": 24})
    tar = b"".join(path.read_bytes() for path in sorted(Path(folder, "shards").glob("*.tar")))
    assert [tar.count(picture(100 + n)) for n in range(12)] == [1] * 12
    numbers = [samples.drawn(np.arange(24), np.full(24, epoch), 1) for epoch in range(20)]
    said = [
        {caption for _, caption in samples.read(samples.pairs(np.unique(some)))} for some in zip(*numbers, strict=True)
    ]
    assert sorted(map(sorted, said)) == sorted(
        [[f"caption {n} of a kite"] for n in range(12)] + [[f"table {n}", "twice"] for n in range(12)]
    )


@pytest.mark.trained
def test_a_training_on_drawn_captions_goes_on_bit_for_bit(tmp_path: Path) -> None:
    config = written(tmp_path, data={**inputs(tmp_path, 24), "captions": "drawn"})
    assert cli.main(["train", config]) == 0
    whole = weights(tmp_path)
    for path in (tmp_path / "trained" / "checkpoints").iterdir():
        if path.name != "step-0000003":
            shutil.rmtree(path)
    shutil.rmtree(tmp_path / "trained" / "index")
    assert cli.main(["train", config]) == 0
    assert weights(tmp_path) == whole


@pytest.mark.trained
def test_training_and_evaluation_on_tars_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(tmp_path, data=inputs(tmp_path, 24), schedule={"steps": 2})
    assert cli.main(["train", config, "--dry-run"]) == 0
    assert "and what tars and tables hold" in capsys.readouterr().out
    assert cli.main(["train", config]) == 0
    facts = json.loads((tmp_path / "trained" / "run.json").read_text())
    assert facts["without_lineage"] == [str(tmp_path / "*.tar"), str(tmp_path / "*.parquet")]
    assert cli.main(["eval", config]) == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"files": ["nowhere/*.tar"]}, "[data] files: nothing is at 'nowhere/*.tar'; give paths or globs of files"),
        ({"caption_column": "alt"}, "no column 'alt' (there are picture, said); name another"),
        ({"files": []}, "runs and files are empty; give what is to be trained on"),
    ],
)
def test_what_cannot_be_packed_is_one_line(
    tmp_path: Path, changed: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", written(tmp_path, data={**inputs(tmp_path), **changed})]) in (1, 2)
    said = capsys.readouterr().err.splitlines()
    assert message in said[-1]
    assert said[-1].startswith("altalign: ")

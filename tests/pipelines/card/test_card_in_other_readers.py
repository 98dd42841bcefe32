"""The card in other readers: its code runs as it stands; the Hub's header and Croissant are valid."""

import json
import re
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.data.scores import Score
from altalign.data.shards import write_sidecar
from altalign.pipelines.card import croissant
from tests.altalign.test_shards_in_other_readers import write_shard
from tests.pipelines.card.test_readme import facts_of
from tests.support.curations import rows_in, write_input

pytestmark = [pytest.mark.runs, pytest.mark.filterwarnings("ignore")]  # of their dependencies, of any kind

OF_DATASETS = "Hugging Face datasets is not installed; `make test-readers` has it"
OF_CROISSANT = "mlcroissant is not installed; `make test-readers` has it"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Two runs, by whether their images are of one kind."""
    pytest.importorskip("datasets", reason=OF_DATASETS)
    found = {}
    for is_portable in (True, False):
        folder = tmp_path_factory.mktemp("carded")
        write_input(folder, rows=200)
        with chdir(folder):
            assert (
                main(
                    [
                        "curate",
                        "config.toml",
                        "--set",
                        f"shards.portable={str(is_portable).lower()}",
                        "--set",
                        "card.licence=CC-BY-4.0",
                    ]
                )
                == 0
            )
        found[is_portable] = folder / "run"
    return found


def block(run: Path, holds: str) -> dict[str, Any]:
    """The names that a block of the card leaves, run in its folder."""
    (code,) = [
        text
        for text in re.findall(r"```python\n(.*?)```", (run / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        if holds in text
    ]
    left: dict[str, Any] = {}
    exec(code, left)
    return left


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets", reason=OF_DATASETS)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return datasets


def test_the_block_for_the_tars_reads_every_pair(runs: dict[bool, Path], datasets: Any) -> None:
    rows = rows_in(runs[True] / "shards")
    with chdir(runs[True]):
        found = [
            (sample["__key__"], sample["txt"], sample["jpg"].size)
            for sample in block(runs[True], '"webdataset"')["pairs"]
        ]
    assert found == [(row["key"], row["caption"], (row["width"], row["height"])) for row in rows]


@pytest.mark.parametrize("is_portable", [True, False])
def test_the_block_for_the_side_cars_reads_every_row(runs: dict[bool, Path], datasets: Any, is_portable: bool) -> None:  # noqa: FBT001 - a parameter of the test
    with chdir(runs[is_portable]):
        found = list(block(runs[is_portable], '"parquet"')["rows"])
    assert found == rows_in(runs[is_portable] / "shards")


@pytest.mark.parametrize("is_portable", [True, False])
def test_the_folder_loads_by_its_header_which_says_the_features_that_are_found_without_it(
    runs: dict[bool, Path],
    datasets: Any,
    is_portable: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    run, (builder, ending) = runs[is_portable], ("webdataset", "tar") if is_portable else ("parquet", "parquet")
    by_card = datasets.load_dataset(str(run), split="train", streaming=True)
    files = {"train": sorted(map(str, (run / "shards").glob(f"*.{ending}")))}
    without = datasets.load_dataset(builder, data_files=files, split="train", streaming=True)
    assert by_card.features == without.features
    assert [sample.get("__key__", sample.get("key")) for sample in by_card] == [
        row["key"] for row in rows_in(run / "shards")
    ]


@pytest.mark.filterwarnings("ignore")
def test_the_block_for_images_of_several_kinds_reads_every_sample(runs: dict[bool, Path]) -> None:
    pytest.importorskip("webdataset", reason="webdataset is not installed: uv sync --group test")
    with chdir(runs[False]):
        found = [sample["__key__"] for sample in block(runs[False], "webdataset.WebDataset")["samples"]]
    assert found == [row["key"] for row in rows_in(runs[False] / "shards")]


@pytest.mark.parametrize("is_portable", [True, False])
def test_croissant_is_valid_and_its_records_are_the_rows(runs: dict[bool, Path], is_portable: bool) -> None:  # noqa: FBT001 - a parameter of the test
    mlcroissant = pytest.importorskip("mlcroissant", reason=OF_CROISSANT)
    run = runs[is_portable]
    with chdir(run):
        found = [
            {name.removeprefix("pairs/"): _plain(value) for name, value in record.items()}
            for record in block(run, "mlcroissant")["records"]
        ]
    assert sorted(found, key=lambda row: row["key"]) == sorted(rows_in(run / "shards"), key=lambda row: row["key"])
    metadata = mlcroissant.Dataset(str(run / "croissant.json")).metadata
    assert metadata.ctx.issues.errors == set()
    assert metadata.ctx.is_v1_1()
    assert (metadata.license, metadata.name) == (["CC-BY-4.0"], "Image-text pairs from pictures, words")
    card = json.loads((run / "croissant.json").read_text(encoding="utf-8"))
    assert metadata.data_collection == card["rai:dataCollection"]
    assert metadata.data_preprocessing_protocol == card["rai:dataPreprocessingProtocol"]
    assert metadata.data_limitations == card["rai:dataLimitations"]
    assert metadata.personal_sensitive_information == card["rai:personalSensitiveInformation"]
    # it has no words for these, but keeps them
    for name in ("prov:wasDerivedFrom", "prov:wasGeneratedBy", "prov:wasAttributedTo", "usageInfo"):
        assert name in metadata.to_json()


@pytest.mark.filterwarnings("ignore")
def test_croissant_reads_statements_and_embeddings(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason=OF_CROISSANT)
    (tmp_path / "shards").mkdir()
    pairs = write_shard(tmp_path / "shards" / "00000.tar", ["jpeg"])
    with (tmp_path / "shards" / "00000.parquet").open("wb") as file:
        write_sidecar([row for _, row in pairs], file, "00000.tar")
    (tmp_path / "scores" / "e").mkdir(parents=True)
    kind = pa.list_(pa.float32(), 2)
    keys, vectors = [row["key"] for _, row in pairs], [[number, 0.5] for number in range(len(pairs))]
    pq.write_table(pa.table({"key": keys, "e": pa.array(vectors, kind)}), tmp_path / "scores" / "e" / "00000.parquet")
    score = Score("", "e", {"kind": "embedding", "digest": "0", "columns": {"e": str(kind)}}, {})
    card = croissant(facts_of()._replace(scores=(score,)))
    (tmp_path / "croissant.json").write_text(json.dumps(card), encoding="utf-8")
    with chdir(tmp_path):
        dataset = mlcroissant.Dataset("croissant.json")
        found = [_plain(record["pairs/preferences"]) for record in dataset.records("pairs")]
        measured = [record["of-e/e"] for record in dataset.records("of-e")]
    nobody = [dict.fromkeys(("notation", "value", "where", "when"))]  # its word for a list that is null
    assert found == [nobody if row["preferences"] is None else row["preferences"] for _, row in pairs]
    assert measured == vectors


def _plain(value: Any) -> Any:
    """What mlcroissant gives of a cell: bytes of text, NumPy's numbers, and for a null something that is not itself."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name.rpartition("/")[2]: _plain(each) for name, each in value.items()}
    if value is None or value != value:
        return None
    return value if isinstance(value, str) else int(value)

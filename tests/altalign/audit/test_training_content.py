"""The summary of training content: what a run knows of it, beside its rows, and what it leaves open."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.audit import training_content
from altalign.audit.run_folder import RunFolder
from altalign.cli import main
from tests.support.finished_runs import copied, curated, rows_of

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return curated(tmp_path_factory.mktemp("run"), rows=120)


def test_it_has_what_the_run_knows_and_leaves_the_rest_open(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["audit", str(run), "--summary", "eu", "--to", str(tmp_path)]) == 0
    paths = [tmp_path / f"training-content.{ending}" for ending in ("md", "json")]
    assert capsys.readouterr().out.splitlines() == list(map(str, paths))
    found = json.loads(paths[1].read_text(encoding="utf-8"))
    rows = rows_of(run)
    assert (found["general"]["pairs"], found["general"]["provider"]) == (len(rows), None)
    sizes = Counter[str]()
    for image_id, row in {row["image_id"]: row for row in rows if row["image_url"]}.items():
        assert image_id
        sizes[row["image_url"].split("/")[2]] += row["bytes"]
    crawled = found["sources"]["crawled_and_scraped"]
    assert (crawled["registered_domains"], crawled["top_share_percent"]) == (len(sizes), 10)
    assert [(each["domain"], each["bytes"]) for each in crawled["top_domains"]] == sizes.most_common(1)
    assert "C(2025) 8311" in found["form"]
    assert found["processing"]["purposes_whose_opposition_was_respected"] == ["train"]
    text = paths[0].read_text(encoding="utf-8")
    assert "- Provider: **not known to the run**" in text
    assert f"- Pairs: {len(rows):,}" in text
    assert main(["audit", str(run), "--quick"]) == 0  # nothing was written in the run


def test_an_image_of_two_generations_counts_once(run: Path, tmp_path: Path) -> None:
    grown = copied(run, tmp_path / "grown")
    shutil.copy(grown / "shards" / "00000.parquet", grown / "shards" / "g0002-00000.parquet")
    of_both = [training_content.gathered(RunFolder.open(str(each)), "eu") for each in (run, grown)]
    assert of_both[0] == of_both[1]


@pytest.mark.parametrize(
    ("form", "domains", "listed"),
    [("eu", 21, 3), ("eu-small", 21, 2), ("eu", 30_001, 3_001), ("eu-small", 30_001, 1_000)],
)
def test_the_largest_domains_are_as_many_as_the_form_asks_for(
    form: str, domains: int, listed: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = [(f"{number}.example", 40_000 - number) for number in range(domains)]
    monkeypatch.setattr(training_content, "_domains", lambda _: largest)
    found = training_content.gathered(RunFolder.open(str(run)), form)["sources"]["crawled_and_scraped"]
    assert [(each["domain"], each["bytes"]) for each in found["top_domains"]] == largest[:listed]
    assert found["registered_domains"] == domains


def test_hosts_of_one_registered_domain_count_together(run: Path, tmp_path: Path) -> None:
    other = copied(run, tmp_path / "other")
    hosts = ["cdn.shop.co.uk", "www.shop.co.uk", "10.0.0.1", "one.github.io", "two.github.io"]
    sizes = dict[str, dict[str, int]]()
    for path in (other / "shards").glob("*.parquet"):
        rows = pq.read_table(path)
        ids, of_images = (rows[name].to_pylist() for name in ("image_id", "bytes"))
        of_rows = [hosts[int(image_id[:4], 16) % 5] for image_id in ids]
        urls = pa.array([f"https://{host}/a.png" for host in of_rows])
        pq.write_table(rows.set_column(rows.column_names.index("image_url"), "image_url", urls), path)
        for image_id, size, host in zip(ids, of_images, of_rows, strict=True):
            sizes.setdefault(host.removeprefix("cdn.").removeprefix("www."), {})[image_id] = size
    found = dict(training_content._domains(RunFolder.open(str(other))))
    assert found == {domain: sum(images.values()) for domain, images in sizes.items()}
    assert len(found) == 4


def test_california_has_its_twelve_items_of_the_same_facts(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(run), "--summary", "ca", "--to", str(tmp_path)]) == 0
    text = (tmp_path / "training-data-ca.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\d+)\. ", text, re.MULTILINE) == [str(number) for number in range(1, 13)]
    found = json.loads((tmp_path / "training-data-ca.json").read_text(encoding="utf-8"))
    assert len(found) == 1 + 12
    assert found["data_points"]["pairs"] == len(rows_of(run))
    (of_all, *_) = found["personal_information"]["captions_of_a_sample_that_have_it"]
    assert list(of_all) == ["language", "captions", "email", "phone", "address"]
    assert of_all["captions"] == len(rows_of(run))
    assert found["purpose"] is found["first_used"] is found["synthetic_data"] is None
    assert "\n## 12. Synthetic data\n\n**not known to the run**\n" in text


def test_it_is_not_written_into_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["audit", str(run), "--summary", "eu", "--to", str(run / "audit")]) == 2
    assert "inside the run, whose files are listed; give another folder" in capsys.readouterr().err

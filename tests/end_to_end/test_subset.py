"""Runs of a list of another run's pairs, and of shares of them: the same samples, counted, and where they are from."""

import json
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign.cli import main
from altalign.commands.arguments import config_in, config_of_run
from altalign.data.reasons import DropReason, drop_where
from altalign.errors import AltalignError, UsageError
from altalign.pipelines.derive.make_run import Making, chosen, make
from altalign.pipelines.derive.parents import of_unit, opened
from altalign.pipelines.derive.select import keys_of
from altalign.pipelines.run.shard_tables import ChosenFacts, ShardOfParent
from altalign.pipelines.run.units import Run
from tests.support.curations import summary, write_input
from tests.support.finished_runs import rows_of

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_input(folder, rows=300)
    with chdir(folder):
        assert main(["curate", "config.toml"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _in_folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def without_places(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("tar_offset", "image")} for row in rows]


@pytest.mark.everyday
def test_a_subset_has_the_listed_pairs_as_they_were_and_counts_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(Path("run"))
    Path("keys").write_text("\n".join([*(row["key"].upper() for row in rows[::3]), "0" * 32]), encoding="utf-8")
    assert main(["select", "run", "third", "--list", "keys"]) == 0
    assert f"{len(rows[::3]) + 1} listed, and {len(rows[::3])} pairs of them in the run" in capsys.readouterr().err
    assert without_places(rows_of(Path("third"))) == without_places(rows[::3])
    last = summary(Path("third"))["stages"][-1]
    assert (last["stage"], last["received"], last["dropped"]) == (
        "select",
        len(rows),
        {"not_listed": len(rows) - len(rows[::3])},
    )
    assert main(["audit", "third"]) == 0
    # and what it is from
    capsys.readouterr()
    assert main(["status", "--lineage", "third", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    numbers = [json.loads(Path(run, "manifest.json").read_text())["files"]["sha256"] for run in ("third", "run")]
    assert [told["number"], told["of"][0]["number"]] == numbers
    assert [told["operation"], told["of"][0]["operation"]] == ["subset", "curate"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing is asked for; give --where, --respect, --top, --balance, --list or --share"),
        (["--list", "keys", "--where", "words > 1"], "--where: does not go with --list; leave it out"),
        (["--share", "0.5/0.5", "--nulls", "keep"], "--nulls: does not go with --share; leave it out"),
        (
            ["--list", "nosuch"],
            "--list nosuch: cannot be read as a list of keys (No such file or directory); give keys, one a line; "
            "Parquet with a column key or uid; or a .npy of DataComp",
        ),
        (["--keys", "keys"], "unrecognized arguments: --keys keys; `altalign select --help` says what there is"),
    ],
)
def test_ways_to_select_that_do_not_go_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["select", "run", "none", *words]) == 2
    assert capsys.readouterr().err == f"altalign: {message}\n"


def test_a_subset_from_which_pairs_are_removed_tells_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(Path("run"))
    Path("keys").write_text("\n".join(row["key"] for row in rows[:9]), encoding="utf-8")
    Path("gone").write_text(rows[2]["key"], encoding="utf-8")
    assert main(["select", "run", "nine", "--list", "keys"]) == 0
    assert main(["remove", "nine", "--keys", "gone"]) == 0
    assert [row["key"] for row in rows_of(Path("nine"))] == [row["key"] for row in rows[:9] if row != rows[2]]
    assert summary(Path("nine"))["stages"][-1]["dropped"] == {"not_listed": len(rows) - 9, "removed": 1}
    capsys.readouterr()
    assert main(["status", "--lineage", "nine"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("nine ")
    assert first.endswith('remove {"pairs": 1}')
    assert " subset " in second
    assert third.endswith(" curate")


def test_a_split_has_every_pair_once_and_never_parts_an_image_or_copies_of_it() -> None:
    assert main(["select", "run", "most", "rest", "--share", "0.7/0.3"]) == 0
    most, rest = rows_of(Path("most")), rows_of(Path("rest"))
    rows = rows_of(Path("run"))
    assert sorted(row["key"] for row in (*most, *rest)) == sorted(row["key"] for row in rows)
    for name in ("image_id", "sha256"):
        assert not {row[name] for row in most} & {row[name] for row in rest}
    assert most
    assert rest
    assert main(["audit", "most"]) == 0


def test_lists_of_every_form_name_the_same_keys(tmp_path: Path) -> None:
    keys = [format(number, "032x") for number in (3, 1 << 100, 7)]
    (tmp_path / "text").write_text("\n".join(keys), encoding="utf-8")
    pairs = [(int(key[:16], 16), int(key[16:], 16)) for key in keys]
    np.save(tmp_path / "uids.npy", np.array(pairs, np.dtype("u8,u8")))  # as DataComp has it
    for name in ("key", "uid"):
        pq.write_table(pa.table({name: keys, "other": [1, 2, 3]}), tmp_path / f"{name}.parquet")
    for name in ("text", "uids.npy", "key.parquet", "uid.parquet"):
        assert keys_of(((str(tmp_path / name), ""),)).to_pylist() == sorted(keys)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PAR1", "cannot be read"),
        (b"\x93NUMPY", "cannot be read"),
        (b"\xff\xff", "cannot be read"),
        (b"\n", "nothing is listed"),
    ],
)
def test_what_is_no_list_is_refused_in_one_line(content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(UsageError, match=f"--list .*{why}"):
        keys_of(((str(tmp_path / "list"), repr(content)),))


def test_shares_in_one_folder_are_refused_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    for outs in (["twice", "./twice/"], ["twice", "twice/more"], ["more/../twice/more", "twice"]):
        assert main(["select", "run", *outs, "--share", "0.5/0.5"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "the same folder as" in line
        assert not Path("twice").exists()


@pytest.mark.parametrize("at", [0, 2])
def test_of_a_run_that_changes_meanwhile_no_other_is_made(at: int) -> None:
    shutil.copytree("run", f"changing-{at}")
    run, gone = f"changing-{at}", rows_of(Path("run"))[0]["key"]
    Path("gone").write_text(gone, encoding="utf-8")
    config, made = config_of_run(run, ()), config_in(run, f"out-{at}")
    parent, seen = opened(run, config), list[str]()

    def choose(of: Run, unit: ShardOfParent) -> ChosenFacts:
        seen.append(unit["name"])
        if len(seen) == at + 1:
            assert main(["remove", run, "--keys", "gone"]) == 0
        rows = parent.samples(of_unit((parent,), unit["name"])[1])
        return chosen(of, unit["name"], rows, [drop_where(pa.array([False] * len(rows)), DropReason.NOT_LISTED)])

    with pytest.raises(AltalignError):
        make(Making("subset", {}, (parent,), choose), Run(f"out-{at}", made, ()), [])
    assert not Path(f"out-{at}", "manifest.json").exists()
    shutil.rmtree(f"out-{at}")
    Path("keys").write_text("\n".join(row["key"] for row in rows_of(Path(run))), encoding="utf-8")
    assert main(["select", run, f"out-{at}", "--list", "keys"]) == 0  # as it is now
    assert gone not in {row["key"] for row in rows_of(Path(f"out-{at}"))}

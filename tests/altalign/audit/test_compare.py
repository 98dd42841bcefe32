"""Two runs side by side: settings, counts, and the verdicts of pairs, against a join by a plain dictionary."""

import base64
import io
import json
import re
import shlex
from collections import Counter
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from altalign.audit import compare
from altalign.cli import main as altalign
from altalign.data.schema import DROPPED
from altalign.errors import DamagedError, UsageError
from tests.support import finished_runs as runs
from tests.support.chromium import WIDTHS, browser, opened
from tests.support.curations import write_input

pytestmark = pytest.mark.runs
OTHER = ("--set", "text.words_at_most=4", "--set", "image.short_side_above_px=225", "--set", "text.vocabulary_size=200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one pool: `a`, `b` of other settings, `bare` as `b` without dropped rows; and `less`, of a part of the
    pool.
    """
    folder = tmp_path_factory.mktemp("compared")
    write_input(folder)
    more = {
        "a": (),
        "b": OTHER,
        "bare": (*OTHER, "--set", "audit.keep_dropped=false"),
        "less": ("--set", 'input=[{kind="table",paths=["input/part-0.parquet"],image_column="image"}]'),
    }
    for name, sets in more.items():
        with chdir(folder):
            assert altalign(["curate", "config.toml", "--set", f"run.folder={name}", *sets]) == 0
    return folder


def compared(capsys: pytest.CaptureFixture[str], a: Path, b: Path) -> dict[str, Any]:
    capsys.readouterr()
    assert compare.main(str(a), str(b), as_json=True) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], a: Path, b: Path) -> str:
    capsys.readouterr()
    assert compare.main(str(a), str(b)) == 0
    return capsys.readouterr().out


def verdicts(run: Path) -> dict[str, str]:
    """What became of each pair, by key: the oracle."""
    found = {}
    for stage in ("judge", "fetch", "image", "decontaminate"):
        for path in sorted((run / "dropped" / stage).glob("*.parquet")):
            for row in pq.read_table(path).to_pylist():
                if row["reason"] != "pair_repeated":
                    found[row["key"]] = f"{stage}: {row['reason']}"
    return {**found, **dict.fromkeys((row["key"] for row in runs.rows_of(run)), "kept")}


@pytest.mark.parametrize(
    ("one", "two"), [("a", "b"), ("b", "a"), ("a", "less"), ("less", "b"), ("a", "bare"), ("a", "a")]
)
def test_verdicts_are_those_of_a_join_by_a_dictionary(
    folder: Path, capsys: pytest.CaptureFixture[str], one: str, two: str
) -> None:
    a, b = verdicts(folder / one), verdicts(folder / two)
    absent = {name: "dropped, or not in its pool" if name == "bare" else "not in its pool" for name in (one, two)}
    changes = {key: (a.get(key, absent[one]), b.get(key, absent[two])) for key in sorted({*a, *b})}
    found = compared(capsys, folder / one, folder / two)
    assert {(cell["from"], cell["to"]): cell["pairs"] for cell in found["verdicts"]} == Counter(changes.values())
    numbers = [(cell["from"] == cell["to"], -cell["pairs"]) for cell in found["verdicts"]]
    assert numbers == sorted(numbers)
    for change in {change for change in changes.values() if change[0] != change[1]}:
        keys = [key for key, each in changes.items() if each == change][: compare.EXAMPLES]
        assert [each["key"] for each in found["examples"] if (each["from"], each["to"]) == change] == keys
    assert {(each["from"], each["to"]) for each in found["examples"]} == {
        change for change in changes.values() if change[0] != change[1]
    }


def test_what_differs_stands_side_by_side_and_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, said = compared(capsys, folder / "a", folder / "b"), printed(capsys, folder / "a", folder / "b")
    assert {each["name"]: (each["a"], each["b"]) for each in found["settings"]} == {
        "text.words_at_most": ("20", "4"),
        "image.short_side_above_px": ("200", "225"),
        "text.vocabulary_size": ("380", "200"),
    }
    for side in ("a", "b"):
        summary = json.loads((folder / side / "summary.json").read_text())
        for stage in summary["stages"]:
            rows = {each["reason"]: each[side] for each in found["counts"] if each["stage"] == stage["stage"]}
            assert (rows.pop("received"), rows.pop("kept")) == (stage["received"], stage["kept"])
            assert {reason: number for reason, number in rows.items() if number} == stage["dropped"]
    assert found["totals"]["pairs"] == [len(runs.rows_of(folder / name)) for name in ("a", "b")]
    rows = [row for name in "ab" for row in (*runs.rows_of(folder / name), *dropped(folder / name))]
    captions = {row["key"]: row["caption"] for row in rows}
    assert len(found["examples"]) > 5
    assert all(each["caption"] == captions[each["key"]] for each in found["examples"])
    change = found["verdicts"][0]
    assert f"{change['pairs']:,} pairs: {change['from']} -> {change['to']}\n" in said
    assert re.search(r"│ text.words_at_most +│ 20 +│ 4 +│", said)
    assert all(f"  {each['key']} {each['caption'][:100]}" in said for each in found["examples"])


def dropped(run: Path) -> list[dict[str, Any]]:
    return [row for path in (run / "dropped").rglob("*.parquet") for row in pq.read_table(path).to_pylist()]


def test_a_run_with_itself_has_no_changes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, folder / "a", folder / "a")
    assert "settings and versions are the same\n" in said
    assert "no pair changed its verdict\n" in said


def test_a_stage_that_one_run_does_not_have_has_no_numbers_of_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert altalign(["select", str(folder / "a"), str(tmp_path / "some"), "--where", "words > 4"]) == 0
    capsys.readouterr()
    found = compared(capsys, folder / "a", tmp_path / "some")
    of_select = [each for each in found["counts"] if each["stage"] == "select"]
    assert {each["a"] for each in of_select} == {None}
    assert of_select[0]["b"] == len(runs.rows_of(folder / "a"))
    said = printed(capsys, folder / "a", tmp_path / "some")
    assert re.search(rf"│ select +│ received +│ +│ +{of_select[0]['b']:,} │ +│", said)
    assert compare.main(str(folder / "a"), str(tmp_path / "some"), page=str(tmp_path / "page.html")) == 0
    assert '<td class="n"></td><td class="n">' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_without_dropped_rows_it_says_what_cannot_be_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, folder / "a", folder / "bare")
    assert "kept -> dropped, or not in its pool" in said


def test_a_run_of_other_rules_and_settings_that_are_unknown_here(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.copied(folder / "b", tmp_path / "later")
    config, manifest = run / "config.toml", run / "manifest.json"
    config.write_text(config.read_text().replace("words_at_least = 3\n", "tokens_at_least = 3\n"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "rules_version": "9"}))
    runs.edit_counts(
        run,
        lambda rows: [
            {**row, "reason": "text_is_dull" if row["reason"] == "text_too_long" else row["reason"]} for row in rows
        ],
    )
    caption = "a \x1b[31mdull\u202e one"
    add_dropped(run, {"key": "0" * 32, "stage": "judge", "reason": "text_is_dull", "caption": caption})
    found = compared(capsys, folder / "a", run)
    assert {"name": "text.words_at_least", "a": "3", "b": "absent"} in found["settings"]
    assert {"name": "text.tokens_at_least", "a": "absent", "b": "3"} in found["settings"]
    assert any(each["reason"] == "text_is_dull" and each["a"] == 0 < each["b"] for each in found["counts"])
    assert {"from": "not in its pool", "to": "judge: text_is_dull", "pairs": 1} in found["verdicts"]
    said = printed(capsys, folder / "a", run)
    assert r"0" * 32 + r" a \x1b[31mdull\u202e one" in said
    assert re.search(r'│ rules_version +│ .* │ "9" +│', said)


@pytest.mark.parametrize(
    "name", ["manifest.json", "config.toml", "counts.parquet", "shards/00001.parquet", "dropped/judge"]
)
@pytest.mark.parametrize("how", ["gone", "garbage"])
def test_a_run_that_is_damaged_or_not_finished_is_one_clear_error(
    folder: Path, tmp_path: Path, name: str, how: str
) -> None:
    run = runs.copied(folder / "b", tmp_path / "run")
    path = sorted((run / name).iterdir())[0] if name == "dropped/judge" else run / name
    path.unlink()
    if how == "garbage":
        path.write_bytes(b"\xff\0[{" * 40)
    elif name in ("dropped/judge", "shards/00001.parquet"):
        return  # nobody knows of it; the checks of the audit do
    expected = UsageError if (name, how) == ("manifest.json", "gone") else DamagedError
    with pytest.raises(expected) as raised:
        compare.main(str(folder / "a"), str(run))
    assert str(path.relative_to(tmp_path)) in str(raised.value) or "not finished" in str(raised.value)


def add_dropped(run: Path, *rows: dict[str, Any]) -> None:
    """One more file of rows that `judge` dropped."""
    pq.write_table(pa.Table.from_pylist([*rows], DROPPED), run / "dropped" / "judge" / "more.parquet")


def test_no_run_is_wrong_usage(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run folder"):
        compare.main(str(folder / "a"), str(tmp_path / "nowhere"))


def test_a_pair_that_was_dropped_twice_has_one_verdict(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In both runs, dropped for other reasons; one of them twice in the same run."""
    made = [runs.copied(folder / "b", tmp_path / name) for name in "ab"]
    orders = (["text_empty", "text_too_long", "text_too_short"], ["text_too_short", "text_too_long", "text_empty"])
    for run, reasons in zip(made, orders, strict=True):
        rows = [
            {"key": f"{'7' * 16}{number:016x}", "stage": "judge", "reason": reason, "caption": ""}
            for number, reason in enumerate([*reasons, "text_empty"])
        ]
        add_dropped(run, *rows, rows[1])
    verdicts = compared(capsys, *made)["verdicts"]
    assert {(each["from"], each["to"]): each["pairs"] for each in verdicts if each["from"] != each["to"]} == {
        ("judge: text_empty", "judge: text_too_short"): 1,
        ("judge: text_too_short", "judge: text_empty"): 1,
    }


# The page -------------------------------------------------------------------------------------------------------------


def paged(folder: Path, path: Path, *more: str) -> str:
    with chdir(folder):
        assert altalign(["audit", "a", "b", "--page", str(path), *more]) == 0
    return path.read_text(encoding="utf-8")


def test_the_page_has_every_change_and_a_picture_of_each_pair_that_a_run_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = paged(folder, tmp_path / "compared.html")
    assert capsys.readouterr().out.endswith(f"page: {tmp_path / 'compared.html'}\n")
    a, b = verdicts(folder / "a"), verdicts(folder / "b")
    absent = "not in its pool"
    changes = Counter((a.get(key, absent), b.get(key, absent)) for key in {*a, *b})
    shown = 0
    for (before, after), number in changes.items():
        if before != after:
            shown += min(number, compare.EXAMPLES)
            count = f"{number:,} pair{'s' * (number != 1)}; {min(number, compare.EXAMPLES)} shown"
            assert f"{before} → {after} " in said
            assert count in said
            if "kept" in (before, after):
                block = said.split(f"{before} → {after} ")[1].split("</ul>")[0]
                assert block.count("data:image/webp;base64,") == min(number, compare.EXAMPLES)
            else:
                assert "data:image" not in said.split(f"{before} → {after} ")[1].split("</ul>")[0]
    assert said.count('<li class="card">') == shown
    for picture in re.findall('data:image/webp;base64,([^"]*)', said):
        assert max(Image.open(io.BytesIO(base64.b64decode(picture))).size) <= 192
    assert "text.words_at_most" in said


def test_the_page_changes_nothing_of_what_is_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with chdir(folder):
        before = printed(capsys, Path("a"), Path("b"))
        found = compared(capsys, Path("a"), Path("b"))
    paged(folder, tmp_path / "compared.html")
    assert capsys.readouterr().out == f"{before}page: {tmp_path / 'compared.html'}\n"
    paged(folder, tmp_path / "compared.html", "--json")
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.browser
def test_the_page_is_quiet_and_fits_and_its_commands_name_both_runs(folder: Path, tmp_path: Path) -> None:
    """With a caption of a stranger in it, which does nothing."""
    both = [runs.copied(folder / name, tmp_path / name) for name in "ab"]
    caption = "<script>window.ran = 1</script>"
    add_dropped(both[1], {"key": "0" * 32, "stage": "judge", "reason": "text_too_long", "caption": caption})
    path = tmp_path / "compared.html"
    assert altalign(["audit", *map(str, both), "--page", str(path)]) == 0
    with browser() as chromium:
        for width in WIDTHS:
            with opened(chromium, path, width=width) as tab:
                tab.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
                assert (tab.complaints, tab.requests) == ([], [path.as_uri()])
                assert (tab.overflow(), tab.outside()) == (0, [])
                assert tab.page.evaluate("window.ran ?? null") is None
                card = tab.page.locator(".card", has_text="window.ran = 1")
                commands = [shlex.split(each) for each in card.locator(".command code").all_inner_texts()]
                assert commands == [["altalign", "explain", str(run), "--key", "0" * 32] for run in both]

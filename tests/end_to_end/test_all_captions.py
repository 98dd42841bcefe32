"""`[shards] captions = "all"`: an image once with all its captions, in every command that writes or reads shards."""

import hashlib
import json
import shutil
import tarfile
from contextlib import chdir
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import altalign
from altalign.browse.server import serving
from altalign.cli import main
from altalign.eval.sets import captioned_set
from tests.browse.test_browse import ask, fetched
from tests.end_to_end.scored import rows
from tests.support.curations import CONFIG, refused, summary, tree, write_input
from tests.support.finished_runs import rows_of

pytestmark = pytest.mark.runs

PARTS = ["input/part-0.parquet", "input/part-1.parquet"]
OF_CAPTIONS = ["captions", "caption_keys", "caption_shares"]
SCORES = """
[[score]]
name = "text"
kind = "text"

[[score]]
name = "look"
kind = "embedding"
"""
ALL = 'captions = "all"\ncaption_shares = {pictures = 3, words = 1}\n'


def write_config(folder: Path, run: str, paths: list[str], more: str = ALL) -> None:
    """Settings by which one run over all the input decides as several do: no n-gram is rare, no map is learned."""
    text = CONFIG.replace("vocabulary_size = 380\n", "").replace("per_text_at_most = 3", "per_text_at_most = 9")
    text = text.replace('[decontaminate]\ntest_sets = ["tests"]\n', "").replace("samples_per_shard = 20", "")
    text = text.replace('"input/*.parquet"', ", ".join(f'"{path}"' for path in paths)).replace('"run"', f'"{run}"')
    (folder / f"{run}.toml").write_text(f"{text}\nsamples_per_shard = 5\n{more}", encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two inputs whose samples are pairs, one of images with all captions, and one of each input."""
    folder = tmp_path_factory.mktemp("made")
    write_input(folder)
    with chdir(folder):
        write_config(folder, "pairs", PARTS, "")
        for run, paths in {"whole": PARTS, "first": PARTS[:1], "second": PARTS[1:]}.items():
            write_config(folder, run, paths)
        for run in ("pairs", "whole", "first", "second"):
            assert main(["curate", f"{run}.toml"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _in_folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def samples(run: str) -> list[dict[str, Any]]:
    """The samples of a run by the tars alone, each with its members by their endings."""
    found = list[dict[str, Any]]()
    for path in sorted(Path(run, "shards").glob("*.tar")):
        with tarfile.open(path) as tar:
            contents = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
        for key, members in groupby(contents, lambda each: each[0].partition(".")[0]):
            found.append({"key": key, "shard": path.stem, **{name.partition(".")[2]: data for name, data in members}})
    return found


def check_whole(run: str) -> None:
    """Check that each image of the side-cars is one sample, which has the captions of all its rows."""
    rows, found, weights = rows_of(Path(run)), samples(run), {"pictures": 3.0, "photos": 2.0, "words": 1.0}
    images = [list(of_image) for _, of_image in groupby(rows, itemgetter("image_id"))]
    assert len(images) == len(found) == len({row["image_id"] for row in rows})
    for of_image, sample in zip(images, found, strict=True):
        first, told = of_image[0], json.loads(sample["json"])
        assert sample["key"] == first["key"] == told["key"]
        assert sample["txt"].decode() == first["caption"]
        assert len(sample["jpg"]) == first["bytes"]
        assert {row["tar_offset"] for row in of_image} == {first["tar_offset"]}
        assert told["captions"] == [row["caption"] for row in of_image]
        assert told["caption_keys"] == sorted(row["key"] for row in of_image)
        of_sources = [weights[row["source"]] for row in of_image]
        assert told["caption_shares"] == [weight / sum(of_sources) for weight in of_sources]
    assert main(["audit", run]) == 0


@pytest.mark.everyday
def test_an_image_is_once_in_the_shards_with_all_captions_that_stayed() -> None:
    check_whole("whole")
    rows, pairs = rows_of(Path("whole")), rows_of(Path("pairs"))
    where = ("tar_offset", "tar_bytes", "image")
    assert [{**row, **dict.fromkeys(where)} for row in rows] == [{**row, **dict.fromkeys(where)} for row in pairs]
    assert summary(Path("whole"))["stages"] == summary(Path("pairs"))["stages"]
    found = samples("whole")
    assert len(found) < len(rows)
    sizes = [len(list(of_shard)) for _, of_shard in groupby(found, itemgetter("shard"))]
    assert len(sizes) > 3
    assert {*sizes[:-1]} == {5}
    assert {row["source"] for row in rows} == {"pictures", "words"}
    assert sum(path.stat().st_size for path in Path("whole/shards").glob("*.tar")) < sum(
        path.stat().st_size for path in Path("pairs/shards").glob("*.tar")
    )


def test_shards_of_pairs_are_written_anew_with_whole_images_and_nothing_else_is_done() -> None:
    shutil.copytree("pairs", "anew")
    command = ["curate", "anew/config.toml", "--set", "run.folder=anew", "--set", "shards.captions=all"]
    shares = ["--set", "shards.caption_shares={pictures=3,words=1}"]
    assert main([*command, *shares, "--rerun", "write"]) == 0
    assert tree(Path("anew/shards")) == tree(Path("whole/shards"))
    assert main(["audit", "anew"]) == 0


def test_a_sample_whose_captions_are_not_those_of_its_rows_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("whole", "changed", ignore=shutil.ignore_patterns("work", "log"))
    tar = next(iter(sorted(Path("changed/shards").glob("*.tar"))))
    data = tar.read_bytes()
    tar.write_bytes(data.replace(b'"caption_shares":[0.', b'"caption_shares":[1.', 1))
    capsys.readouterr()
    assert main(["audit", "changed"]) == 1
    assert "the captions of its .json are not the rows of the side-car" in capsys.readouterr().out


def test_what_is_made_of_runs_has_whole_samples() -> None:
    where = "words < 6"
    assert main(["select", "whole", "selected", "--where", where]) == 0
    check_whole("selected")
    assert {row["key"] for row in rows_of(Path("selected"))} == {
        row["key"] for row in rows_of(Path("whole")) if row["words"] < 6
    }
    assert main(["merge", "first", "second", "--to", "merged"]) == 0
    check_whole("merged")
    merged, whole = tree(Path("merged/shards")), tree(Path("whole/shards"))
    assert merged == whole


def test_a_caption_goes_and_its_image_stays_with_the_others() -> None:
    shutil.copytree("whole", "less")
    of_images = [list(of_image) for _, of_image in groupby(rows_of(Path("less")), itemgetter("image_id"))]
    several = [of_image for of_image in of_images if len(of_image) > 1]
    gone = [several[0][0]["key"], several[1][-1]["key"], *(row["key"] for row in several[2])]
    Path("gone").write_text("\n".join(gone))
    assert main(["remove", "less", "--keys", "gone"]) == 0
    check_whole("less")
    assert {row["key"] for row in rows_of(Path("less"))} == {row["key"] for row in rows_of(Path("whole"))} - {*gone}
    assert several[0][1]["key"] in {sample["key"] for sample in samples("less")}  # named by the next caption
    texts = b"".join(sample["json"] for sample in samples("less")).decode()
    assert not [key for key in gone if key in texts]
    assert main(["audit", "less", "--full"]) == 0
    for key in (gone[0], several[0][1]["key"]):
        assert main(["explain", "less", "--key", key]) == 0


def test_captions_that_come_later_are_samples_of_a_new_generation() -> None:
    shutil.copytree("first", "kept")  # the run folder is named in its settings
    assert main(["add", "first", "--input", PARTS[1], "--like", "pictures"]) == 0
    shutil.move("first", "grown")
    shutil.move("kept", "first")
    assert {row["key"] for row in rows_of(Path("grown"))} == {row["key"] for row in rows_of(Path("whole"))}
    assert main(["audit", "grown"]) == 0
    assert main(["merge", "grown", "--to", "of-grown"]) == 0
    check_whole("of-grown")


def test_sets_of_evaluation_have_all_captions_by_run_and_by_tars() -> None:
    by_image = {
        image: sorted(row["caption"] for row in of_image)
        for image, of_image in groupby(rows_of(Path("whole")), itemgetter("image_id"))
    }
    for paths in (["whole"], ["whole/shards/*.tar"]):
        images = captioned_set(paths, None)
        assert sorted(sorted(some) for some in images.captions) == sorted(by_image.values())
        assert len(list(images)) == len(by_image)


def test_rows_and_pictures_of_an_opened_run_are_by_caption() -> None:
    run = altalign.open("whole")
    rows = run.samples().to_table()
    digests = [hashlib.sha256(image).hexdigest() for image in run.images(rows)]
    assert digests == rows["sha256"].to_pylist()
    assert len(digests) > len(set(rows["image_id"].to_pylist()))
    assert [caption for _, caption in run.to_torch()] == rows["caption"].to_pylist()


def test_scores_are_by_caption_and_pictures_of_an_image_once_as_of_pairs() -> None:
    Path("scores.toml").write_text(SCORES, encoding="utf-8")
    values = dict[str, dict[str, tuple[int, list[float]]]]()
    for run in ("pairs", "whole"):
        shutil.copytree(run, scored := f"scored_{run}")
        assert main(["score", scored, "--with", "scores.toml"]) == 0
        values[run] = {row["key"]: (row["text_characters"], row["look"]) for row in rows(Path(scored)).to_pylist()}
    assert values["whole"] == values["pairs"]
    assert values["whole"].keys() == {row["key"] for row in rows_of(Path("whole"))}


def test_the_browse_page_shows_each_caption_with_its_image() -> None:
    rows = {row["key"]: row for row in rows_of(Path("whole"))}
    with serving("whole") as url:
        while not ask(url, "/api/run")["is_read"]:
            pass
        found = ask(url, "/api/rows", {"filter": {"values": {"stage": ["kept"]}}, "count": 200})["rows"]
        shown = {row["key"]: fetched(url, f"/picture/{row['n']}") for row in found if row["stage"] == "kept"}
    assert shown.keys() == rows.keys()
    by_image = {row["image_id"]: set[bytes]() for row in rows.values()}
    for key, picture in shown.items():
        by_image[rows[key]["image_id"]].add(picture)
    assert {len(pictures) for pictures in by_image.values()} == {1}
    assert len(set.union(*by_image.values())) == len(by_image) < len(rows)


def test_runs_of_whole_images_and_of_pairs_are_not_merged(capsys: pytest.CaptureFixture[str]) -> None:
    assert "shards.captions = 'one' and 'all'" in refused(capsys, "merge", "pairs", "second", "--to", "no")


def test_runs_of_inputs_of_several_names_are_merged_with_the_shares_of_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for run, shares in {"photos": "photos = 2, words = 1", "others": "photos = 2, words = 5"}.items():
        write_config(Path(), run, PARTS[1:], f'captions = "all"\ncaption_shares = {{{shares}}}\n')
        Path(f"{run}.toml").write_text(Path(f"{run}.toml").read_text().replace('"pictures"', '"photos"'))
        assert main(["curate", f"{run}.toml"]) == 0
    assert main(["merge", "first", "photos", "--to", "both"]) == 0
    check_whole("both")
    assert {row["source"] for row in rows_of(Path("both"))} == {"pictures", "photos", "words"}
    assert "shards.caption_shares.words = 1.0 and 5.0" in refused(capsys, "merge", "first", "others", "--to", "no")


def test_where_one_run_has_no_shares_all_of_its_captions_have_one() -> None:
    for run, more in {
        "even": 'captions = "all"\n',
        "uneven": 'captions = "all"\ncaption_shares = {photos = 2}\n',
    }.items():
        write_config(Path(), run, PARTS[:1] if run == "even" else PARTS[1:], more)
        text, _, rest = Path(f"{run}.toml").read_text().partition('[[input]]\nname = "words"')
        text += rest[rest.index("[text]") :]
        Path(f"{run}.toml").write_text(text.replace('"pictures"', '"photos"' if run == "uneven" else '"words"'))
        assert main(["curate", f"{run}.toml"]) == 0
    assert main(["merge", "even", "uneven", "--to", "of-both"]) == 0
    check_whole("of-both")

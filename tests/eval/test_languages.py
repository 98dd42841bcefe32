import json
from pathlib import Path

import pytest

from altalign.errors import UnreadableError
from altalign.eval.encoded import Features
from altalign.eval.languages import Captioned, of_set, read_lines, read_xm3600
from tests.eval.one_hot import ENCODER


def written(folder: Path, number: int) -> str:
    for place in range(number):
        (folder / f"{place}.jpg").write_bytes(f"image{place}".encode())
    return str(folder)


def test_every_language_is_measured_as_retrieval_and_the_mean_is_theirs(tmp_path: Path) -> None:
    names = ["0.jpg", "1.jpg", "2.jpg", "lost.jpg"]
    captions = {
        "en": [["0 a", "0 b"], ["1 a", "2 b"], ["2 a", "2 c"], ["5", "5"]],
        "de": [["1"], ["0"], ["2"], ["5"]],
    }
    images, found = of_set(Captioned(names, captions), written(tmp_path, 3), Features(ENCODER, batch=2))
    metrics = found.metrics
    assert metrics["en/image_to_text_r1"] == pytest.approx(200 / 3)  # the third meets a caption of the second
    assert metrics["en/text_to_image_r1"] == pytest.approx(100 * 5 / 6)
    assert metrics["de/text_to_image_r1"] == pytest.approx(100 / 3)
    for name in ("mean_recall", "rsum", "text_to_image_r1"):
        assert metrics[name] == pytest.approx((metrics[f"en/{name}"] + metrics[f"de/{name}"]) / 2)
    assert found.facts == {"images": 3, "languages": 2}
    assert found.left_out == {"no such file": ["lost.jpg"]}
    assert list(images.names) == names[:3]


def test_multi30k_is_files_of_lines(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("0.jpg\n1.jpg\n")
    for name, lines in (("1.en", "a\nb\n"), ("2.en", "c\nd\n"), ("1.fr", "e\nf\n")):
        (tmp_path / name).write_text(lines)
    files = {"en": [str(tmp_path / "1.en"), str(tmp_path / "2.en")], "fr": [str(tmp_path / "1.fr")]}
    found = read_lines(str(tmp_path / "test.txt"), files)
    assert found == Captioned(["0.jpg", "1.jpg"], {"en": [["a", "c"], ["b", "d"]], "fr": [["e"], ["f"]]})
    (tmp_path / "1.fr").write_text("e\n")
    with pytest.raises(UnreadableError, match=r"1 lines, and .* has 2"):
        read_lines(str(tmp_path / "test.txt"), files)


def test_xm3600_is_lines_of_json(tmp_path: Path) -> None:
    rows = [{"image/key": "0f", "locale": "en", "en": {"caption": ["a", "b"]}, "de": {"caption": ["c"]}}]
    path = tmp_path / "captions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert read_xm3600(str(path), []) == Captioned(["0f.jpg"], {"de": [["c"]], "en": [["a", "b"]]})
    assert read_xm3600(str(path), ["en"]).captions == {"en": [["a", "b"]]}
    for wrong in (["fr"], ["locale"]):
        with pytest.raises(UnreadableError, match=r"no captions\.jsonl of XM3600"):
            read_xm3600(str(path), wrong)

"""NLIP's stages as one command; and what is swapped and prompted, by plain loops."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from altalign import cli
from altalign.errors import UsageError
from altalign.settings.common import merged
from altalign.train import loop
from altalign.train.data import by_key, loader, noise_estimates
from altalign.train.data.captions import Swapped, is_swapped, masked_words
from altalign.train.data.order import keyed
from altalign.train.data.training_data import CAPTIONS
from altalign.train.exchange import encoders, export
from altalign.train.nlip import captions, concepts, phases
from altalign.train.settings.training import TrainConfig
from tests.support.run_folders import pairs, write_run
from tests.train.nlip.phased import config


@pytest.mark.trained
def test_captions_do_not_depend_on_what_is_written_with_them(tmp_path: Path) -> None:
    phases.train(config(tmp_path, "run"), until="captioning")
    of = encoders.trained(str(tmp_path / "run/phases/captioning"))
    from altalign.train.data.training_data import prompts_of, samples_of
    from altalign.train.run.ranks import Ranks

    model = encoders.Encoders(of.config, of.model, of.tokenizer, Ranks(0, 1, captions.torch.device("cpu")))
    writer = captions.Captions(model, prompts_of(of.config))
    samples = samples_of(of.config)
    together = writer.table(samples, np.arange(6)).to_pylist()
    alone = [writer.table(samples, np.array([number])).to_pylist()[0] for number in range(6)]
    assert [row["caption"] for row in together] == [row["caption"] for row in alone]


def test_a_training_without_a_captioner_writes_no_captions(tmp_path: Path) -> None:
    from tests.support.trained_folders import write_trained

    run = write_trained(tmp_path / "run")
    with pytest.raises(UsageError, match=r"trained without a \[captioner\]"):
        captions.caption(run)


def test_captions_are_swapped_as_often_as_pairs_are_noisy_anew_at_each_visit(tmp_path: Path) -> None:
    keys = [f"{number * 97:032x}" for number in range(40)]
    given = str(tmp_path / "captions.parquet")
    shuffled = random.Random(0).sample(keys, len(keys))
    pq.write_table(pa.table({"key": shuffled, "caption": [f"written {key}" for key in shuffled]}), given)
    written = by_key.opened(given, str(tmp_path / "captions.arrow"), "caption", "[noise] captions")
    eps, of_noise = np.linspace(0, 1, 40, dtype=np.float32), str(tmp_path / "eps.parquet")
    noise_estimates.write(of_noise, by_key.numbers_of(keys), eps, eps)
    estimates = by_key.opened(of_noise, str(tmp_path / "noise.arrow"), "eps", "[noise] estimates")
    swapped, counts = Swapped(written, estimates), np.zeros(40)
    for epoch in range(200):
        texts = swapped.swapped(["own"] * 40, seed=3, epochs=[epoch] * 40, keys=keys)
        for place, (text, key) in enumerate(zip(texts, keys, strict=True)):
            number = int(key, 16)
            is_drawn = int(keyed(3, epoch, number >> 64, number, 8)[0]) / 2**64 < eps[place]
            assert text == (f"written {key}" if is_drawn else "own")
            counts[place] += is_drawn
    assert counts[0] == 0
    assert counts[-1] == 200
    np.testing.assert_allclose(counts / 200, eps, atol=0.12)
    assert not is_swapped(0.0, seed=1, epoch=1, key=keys[1])


def test_rows_are_found_by_key_and_missing_ones_are_none(tmp_path: Path) -> None:
    given, keys = str(tmp_path / "x.parquet"), [f"{number:032x}" for number in (5, 1, 9, 256)]
    pq.write_table(pa.table({"key": keys, "concepts": [["a"], ["b", "c"], [], ["d"]]}), given)
    concepts = by_key.opened(given, str(tmp_path / "x.arrow"), "concepts", "[captioner] concepts")
    assert concepts.values([keys[3], f"{2:032x}", keys[1]]) == [["d"], None, ["b", "c"]]
    message = r"\[noise\] captions: .*none\.parquet: no such file; `altalign nlip caption RUN` makes it"
    with pytest.raises(UsageError, match=message):
        by_key.opened(str(tmp_path / "none.parquet"), str(tmp_path / "n"), "caption", "[noise] captions")


def test_words_are_masked_by_seed_epoch_and_key() -> None:
    words, key = [[number, number + 100] for number in range(10, 60)], f"{12345:032x}"
    masked = masked_words(words, 0.5, mask=4, seed=1, epoch=2, key=key)
    expected = []
    for place, word in enumerate(words):
        at = int(keyed(1, 2, 0, 12345, 9, np.array([place]))[0]) / 2**64
        expected += [4] if at < 0.5 else word
    assert masked == expected
    assert masked != masked_words(words, 0.5, mask=4, seed=1, epoch=3, key=key)
    assert masked_words(words, 0.0, mask=4, seed=1, epoch=2, key=key) == [piece for word in words for piece in word]


def test_the_vocabulary_is_the_nouns_that_are_seen_often_enough() -> None:
    texts = ["a hot air balloon"] * 5 + ["Dogs and a dog's DOG"] * 4 + ["the dog"] * 2 + ["a cat"] * 3
    lists = ["Hot  Air Balloon", "dog", "cat", "balloon", "unicorn", "", "7"]
    assert concepts.of_lists(lists, texts, texts_at_least=5) == ["balloon", "dog", "hot air balloon"]
    assert concepts.of_lists(lists, texts, texts_at_least=0) == [
        "balloon",
        "cat",
        "dog",
        "hot air balloon",
        "unicorn",
    ]
    tagged = [["dog", "dog"], ["dog"], ["cat"]]
    assert concepts.of_tagger(lambda _: tagged, [], texts_at_least=2) == ["dog"]
    both = concepts.vocabulary(lists, lambda _: [["kite"]] * 5 + [["sea"]] * 4, lambda: iter(texts), texts_at_least=5)
    assert both == ["balloon", "dog", "hot air balloon", "kite"]
    assert concepts.vocabulary([], lambda _: tagged, lambda: iter(texts), texts_at_least=2) == ["dog"]


def test_concepts_of_a_run_are_written_by_key(tmp_path: Path) -> None:
    from tests.support.trained_folders import write_trained

    curated = write_run(tmp_path / "curated", pairs(12))
    model = write_trained(tmp_path / "model")
    (tmp_path / "nouns.txt").write_text("kite\ncaption\nunicorn\n")
    asked = {"model": model, "texts": [], "lists": [str(tmp_path / "nouns.txt")], "prompt": "a photo of", "top": 5}
    assert concepts.retrieve([curated], str(tmp_path / "out"), texts_at_least=5, **asked) == 0
    rows = pq.read_table(tmp_path / "out" / "concepts.parquet").to_pylist()
    assert [row["key"] for row in rows] == sorted(pair.key for pair in pairs(12))
    assert all(sorted(row["concepts"]) == ["caption", "kite"] for row in rows)
    of, by = encoders.opened(model, device="cpu"), {pair.key: pair for pair in pairs(12)}
    image = of.encode_image(of.pixels([by[rows[3]["key"]].image]))
    products = image @ of.encode_text([f"a photo of {noun}" for noun in rows[3]["concepts"]]).T
    np.testing.assert_allclose(products[0].detach().numpy(), rows[3]["similarity"], rtol=1e-4, atol=1e-6)
    assert concepts.retrieve([curated], str(tmp_path / "out"), texts_at_least=5, **asked) == 0  # nothing is left to do
    with pytest.raises(UsageError, match="out: its concepts are of other prompt; give a new folder"):
        concepts.retrieve([curated], str(tmp_path / "out"), texts_at_least=5, **{**asked, "prompt": "of"})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(UsageError, match="mine: it is there already, and no folder of concepts"):
        concepts.retrieve([curated], str(tmp_path / "mine"), texts_at_least=5, **asked)
    with pytest.raises(UsageError, match="no noun is in 50 texts"):
        concepts.retrieve([curated], str(tmp_path / "two"), texts_at_least=50, **asked)
    with pytest.raises(UsageError, match="--tagger: spaCy with en_core_web_sm is not installed"):
        concepts.retrieve([curated], str(tmp_path / "three"), tags=True, texts_at_least=5, **asked)
    with pytest.raises(UsageError, match="no --words, and no tagger"):
        concepts.retrieve([curated], str(tmp_path / "three"), texts_at_least=5, **{**asked, "lists": []})


def test_concepts_that_were_stopped_go_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.trained_folders import write_trained

    monkeypatch.setattr(concepts, "_PART", 5)
    curated, model = write_run(tmp_path / "curated", pairs(12)), write_trained(tmp_path / "model")
    (tmp_path / "nouns.txt").write_text("kite\ncaption\n")
    asked = {"model": model, "texts": [], "lists": [str(tmp_path / "nouns.txt")], "prompt": "a photo of", "top": 5}
    concepts.retrieve([curated], str(tmp_path / "whole"), texts_at_least=5, **asked)
    real, calls = concepts.Concepts.table, list[int]()

    def stopped_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(concepts.Concepts, "table", stopped_once)
    with pytest.raises(KeyboardInterrupt):
        concepts.retrieve([curated], str(tmp_path / "parts"), texts_at_least=5, **asked)
    concepts.retrieve([curated], str(tmp_path / "parts"), texts_at_least=5, **asked)
    assert len(calls) == 2 + 2  # of three parts one had been kept
    left = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "parts")]
    assert left[0] == left[1]
    assert sorted(left[0]) == ["concepts.json", "concepts.parquet", "nouns.txt"]


SETS = """
[[set]]
task = "captioning"
name = "kites"
path = "{0}/curated"

[[set]]
task = "retrieval"
name = "kites"
path = "{0}/curated"
"""


@pytest.mark.trained
def test_captions_are_measured_and_known_to_be_of_a_captioned_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phases.train(config(tmp_path, "run"))
    (tmp_path / "sets.toml").write_text(SETS.format(tmp_path))
    last, captioning = (tmp_path / "run" / "phases" / name for name in ("concept-enhanced", "captioning"))
    assert cli.main(["eval", str(captioning), "--sets", str(tmp_path / "sets.toml")]) == 0
    assert "not zero-shot" not in capsys.readouterr().err  # of its own data set everybody knows that
    found = json.loads((captioning / "eval" / "step-0000003" / "metrics.json").read_text())["captioning/kites"]
    assert found["images"] == found["references"] == 24
    assert 0 <= found["bleu_4"] <= 100
    assert found["cider"] >= 0
    written = pq.read_table(captioning / CAPTIONS)[
        "caption"
    ].to_pylist()  # of the same prompts, for there are no concepts
    outcomes = pq.read_table(captioning / "eval" / "step-0000003" / "outcomes" / "captioning-kites.parquet")
    assert sorted(map(str, outcomes["caption"].to_pylist())) == sorted(map(str, written))

    assert cli.main(["eval", str(last), "--sets", str(tmp_path / "sets.toml")]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "curated: results on the data set that these are of are not zero-shot" in said
    of = encoders.trained(str(last))
    assert export.lineage(of)["captioned_manifests"] == export.lineage(encoders.trained(str(captioning)))["manifests"]
    export.write_card(of, tmp_path, to="onnx", differences={}, notes=[])
    text = (tmp_path / "README.md").read_text()
    assert "A ViT (vit_ti16) and BART of 1 layers" in text
    assert "on MSCOCO, where they are MSCOCO's" in text
    assert "results are not zero-shot" in (last / "report.html").read_text()
    export.write_card(encoders.trained(str(captioning)), tmp_path, to="onnx", differences={}, notes=[])
    assert "MSCOCO" not in (tmp_path / "README.md").read_text()


@pytest.mark.trained
def test_a_captioner_begins_as_a_folder_of_bart(tmp_path: Path) -> None:
    from tests.train.bart_folder import write_bart

    folder = write_bart(tmp_path / "bart", ["a caption of a kite", "caption 12 of a red kite"])
    whole = config(tmp_path, "run").model_dump(mode="json", exclude={"phases"})
    bart = {"layers": 2, "width": 32, "heads": 4, "weights": str(folder)}
    values = merged(whole, {"text_tower": bart, "captioner": {"layers": 2, "weights": str(folder)}})
    assert loop.train(TrainConfig.from_values(values, where="x")) == 0
    run = tmp_path / "run"
    shutil.rmtree(folder)  # which a checkpoint does not need any more
    assert captions.caption(str(run)) == 0
    of = encoders.trained(str(run))
    assert of.tokenizer.is_of_bytes
    assert of.tokenizer.number("<s>") == 0
    rows = pq.read_table(run / CAPTIONS).to_pylist()
    assert all(row["log_probability"] < 0 for row in rows)
    assert not any(piece in row["caption"] for row in rows for piece in ("<s>", "</s>", "<pad>", "<mask>", "\u0120"))


def test_prompts_reach_the_batches_of_workers_and_of_one_process_alike(tmp_path: Path) -> None:
    from altalign.train.data.training_data import prepared
    from altalign.train.run.ranks import Ranks

    of = phases.of_phase(config(tmp_path, "run"), "warm-up")
    Path(of.run.folder).mkdir(parents=True)
    data = prepared(of, Ranks(0, 1, captions.torch.device("cpu")), say=lambda *_: None)
    found = []
    for workers in (0, 1):
        settings = of.data.model_copy(update={"workers": workers})
        some = loader.batches(
            data.samples, data.sampler, data.tokenizer, settings, seed=0, first_batch=0, after_batch=2,
            undecodable=lambda _: None, prompts=data.prompts,
        )  # fmt: skip
        found.append([(batch.prompted[0].tolist(), batch.prompted[1].tolist()) for batch in some if batch.prompted])
    assert found[0] == found[1]
    assert len(found[0]) == 2
    assert all(len(row) == 12 for tokens, _ in found[0] for row in tokens)


@pytest.mark.parametrize("name", ["nlip-demo", "nlip-yfcc26m-b16", "tune-align-fine-grained"])
def test_the_phases_of_the_configs_are_settings(name: str) -> None:
    whole = TrainConfig.load(f"configs/{name}.toml")
    for phase in whole.phases:
        if phase.does == "train":
            of = phases.of_phase(whole, phase.name)
            assert of.run.folder.endswith(f"phases/{phase.name}")


def test_the_config_of_the_paper_has_its_settings() -> None:
    """Equation 8 as printed, no flip, and captions of 384 px (experimental settings)."""
    whole = TrainConfig.load("configs/nlip-yfcc26m-b16.toml")
    of = {phase.name: phases.of_phase(whole, phase.name) for phase in whole.phases if phase.does == "train"}
    assert {name: settings.data.crop_px for name, settings in of.items()} == {
        "warm-up": 224, "noise-aware": 224, "captioning": 384, "concept-enhanced": 224,
    }  # fmt: skip
    for settings in of.values():
        assert not settings.data.flip
        noise = settings.noise
        assert (noise.one_group_by_bic, noise.means_apart_at_least, noise.clean_below_lower_mean) == (False, 0, False)

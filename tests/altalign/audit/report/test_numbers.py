"""Every number of a report against plain loops over the candidates of a small run, and what other thresholds keep
against judging them anew.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from altalign.audit.report import funnel, page
from altalign.audit.report.page import Numbers
from altalign.audit.run_folder import RunFolder
from altalign.data.reasons import PAPERS, WORDS
from altalign.rules import reason_words
from tests.altalign.audit.report import report_run
from tests.altalign.audit.report.report_run import NGRAMS, PASSED, Candidate, Limits

OWN = Limits()


@pytest.fixture(scope="module")
def pool() -> list[Candidate]:
    return report_run.candidates()


@pytest.fixture(scope="module")
def found(pool: list[Candidate], tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    return gathered(report_run.write(tmp_path_factory.mktemp("numbers"), pool))


def gathered(run: Path) -> Numbers:
    return page.gather(RunFolder.open(str(run)), PASSED)


# Funnel and reasons --------------------------------------------------------------------------------------------------


def test_the_funnel_has_the_rows_that_every_stage_kept_by_source(pool: list[Candidate], found: Numbers):
    left = list(pool)
    expected = [("pool", left)]
    for stage in report_run.STAGES:
        left = [each for each in left if report_run.outcome(each, OWN)[0] != stage]
        expected.append((stage, left))
    expected.append(("shards", left))
    assert [
        (step.name, step.rows, {source: amount.rows for source, amount in step.by_source.items()})
        for step in found.funnel
    ] == [
        (name, len(rows), {source: sum(each.source == source for each in rows) for source in ("web", "table")})
        for name, rows in expected
    ]
    amounts = {
        "images": [None, 777, 666, 600, 555, len(left) - 5, len(left) - 5],
        "bytes": [3_345, None, None, 5_000, 4_000, 3_000, 7_654_321],
    }
    for measure, expected_amounts in amounts.items():
        assert [getattr(step, measure) for step in found.funnel] == expected_amounts
        for source in ("web", "table"):
            of_source = [report_run.of_source(each, source) for each in expected_amounts]
            assert [getattr(step.by_source[source], measure) for step in found.funnel] == of_source
        counted = [name for (name, _), amount in zip(expected, expected_amounts, strict=True) if amount is not None]
        assert [step.name for step in found.counting(measure)] == counted


def test_sources_beyond_the_most_frequent_are_counted_together(tmp_path: Path):
    pool = [replace(each, source=f"source {each.number % 45:02}") for each in report_run.candidates(460)]
    pool += [replace(each, source="the most") for each in pool]
    steps = gathered(report_run.write(tmp_path, pool)).funnel
    assert len(steps[0].by_source) == funnel.SOURCES_AT_MOST + 1
    assert next(iter(steps[0].by_source)) == "the most"
    assert all(sum(amount.rows for amount in step.by_source.values()) == step.rows for step in steps)
    assert {(step.by_source[funnel.OTHERS].images, step.by_source[funnel.OTHERS].bytes) for step in steps} == {
        (None, None)
    }


def test_sources_that_lose_all_pairs_stay_in_the_table(tmp_path: Path):
    run = RunFolder.open(str(report_run.write(tmp_path, report_run.candidates(46))))
    counts = {("extract", f"source {number:02}", "kept"): 100 - number for number in range(45)}
    counts |= {("judge", f"source {number:02}", "kept"): 9 for number in range(funnel.SOURCES_AT_MOST)}
    steps = funnel.steps(run, counts)
    assert [step.by_source[funnel.OTHERS].rows for step in steps][2:] == [0] * (len(steps) - 2)


def test_reasons_are_counted_first_held_alone_and_together(pool: list[Candidate], found: Numbers):
    for stage in found.stages:
        failing = [failed for each in pool for end, failed in [report_run.outcome(each, OWN)] if end == stage.stage]
        names = [reason.name for reason in stage.reasons]
        assert names == [reason for reason in WORDS if any(reason in failed for failed in failing)]
        for reason in stage.reasons:
            assert reason.rows == sum(failed[0] == reason.name for failed in failing)
            assert reason.holds == sum(reason.name in failed for failed in failing)
            assert reason.only == sum(failed == [reason.name] for failed in failing)
        assert stage.overlap == [
            [sum(one in failed and other in failed for failed in failing) for other in names] for one in names
        ]
        assert not set(stage.silent) & set(names)
    assert any(stage.has_overlap for stage in found.stages)


def test_every_reason_is_told_with_the_value_of_its_setting(found: Numbers):
    told = {reason.name: reason.about for stage in found.stages for reason in stage.reasons}
    assert told["text_too_short"] == "Fewer words than `text.words_at_least = 3`."
    assert "`text.vocabulary_size = 341`" in told["text_has_rare_ngram"]
    config = RunFolder.open(found.folder).config
    assert all(reason_words.sentence(config, reason).endswith(".") for reason in WORDS)


# Distributions -------------------------------------------------------------------------------------------------------


def test_every_distribution_counts_all_that_was_measured(pool: list[Candidate], found: Numbers):
    judged = [each for each in pool if not each.extract]
    fetched = [each for each in judged if not each.judged(OWN) and each.is_fetched]
    sized = [each for each in fetched if each.width]
    passing = sum(each.judged(OWN) in ([], ["pair_repeated"]) for each in judged)
    good = sum(not each.image(OWN) for each in fetched)
    expected = {
        "words": (passing, len(judged)),
        "rarest_log2": (passing, sum(each.words > 0 for each in judged)),
        "images_per_text": (sum(each.images_per_text <= 10 for each in pool), len(pool)),
        "texts_per_image": (sum(each.texts_per_image <= 1_000 for each in pool), len(pool)),
        "short_side_px": (good, len(sized)),
        "aspect_percent": (good, len(sized)),
        "cosine": (14, 18),
    }
    sums = {
        each.key: (sum(part.kept for part in each.bins), sum(part.dropped for part in each.bins))
        for each in found.distributions
        if each.bins
    }
    assert {key: (kept, kept + dropped) for key, (kept, dropped) in sums.items()} == expected


def test_bins_of_words_are_the_words(pool: list[Candidate], found: Numbers):
    words = next(each for each in found.distributions if each.key == "words")
    judged = [each for each in pool if not each.extract]
    for number in range(40):
        of_bin = [each for each in judged if each.words == number]
        assert words.bins[number].label == str(number)
        assert words.bins[number].kept + words.bins[number].dropped == len(of_bin)
        assert words.bins[number].kept == sum(each.judged(OWN) in ([], ["pair_repeated"]) for each in of_bin)
    assert words.bins[40].label == "40 or more"


def test_thresholds_part_what_they_part(found: Numbers):
    """No bin before "above 200 px" has what is kept; none from "below 3" on; and so on."""
    by_key = {each.key: each for each in found.distributions}
    for key, number, is_kept_after in (
        ("words", 0, True), ("words", 1, False), ("rarest_log2", 0, True), ("images_per_text", 0, False),
        ("texts_per_image", 0, False),
        ("short_side_px", 0, True), ("aspect_percent", 0, False), ("cosine", 0, False),
    ):  # fmt: skip
        bins, at = by_key[key].bins, by_key[key].thresholds[number].at
        lost, stays = (bins[:at], bins[at:]) if is_kept_after else (bins[at:], bins[:at])
        assert sum(part.kept for part in lost) == 0, key
        assert sum(part.kept for part in stays) > 0, key


@pytest.mark.parametrize(
    "text",
    [
        "words_at_most = 300",
        "words_at_least = 70\nwords_at_most = 80",
        "words_at_least = 254\nwords_at_most = 300",
        "images_per_text_at_most = 4_000",
        "words_at_most = 254",
    ],
)
def test_thresholds_may_be_anywhere(pool: list[Candidate], tmp_path: Path, text: str):
    run = report_run.write(tmp_path, pool[:300])
    config = (run / "config.toml").read_text(encoding="utf-8").replace("[text]", f"[text]\n{text}")
    (run / "config.toml").write_text(
        config + "\n[image]\nshort_side_above_px = 3000\naspect_ratio_below = 1.333\n", encoding="utf-8"
    )
    found = gathered(run)
    drawn = [*found.distributions, *found.thresholds]
    assert all(0 <= threshold.at <= len(each.bins) for each in drawn for threshold in each.thresholds)


@pytest.mark.parametrize(
    ("setting", "key", "label"),
    [
        ("aspect_ratio_below = 2.2", "aspect_percent", "2.20\u2013"),
        ("nsfw.drop_at_or_above = 0.07", "nsfw_percent", "0.07"),
    ],
)
def test_a_threshold_of_hundredths_stands_where_it_is(
    pool: list[Candidate], tmp_path: Path, setting: str, key: str, label: str
):
    """100 * 2.2 is more than 220 in binary, and 100 * 0.07 more than 7."""
    run = report_run.write(tmp_path, pool, extra=f'[image]\nnsfw.model = "some.onnx"\n{setting}\n')
    drawn = {each.key: each for each in gathered(run).distributions}[key]
    assert [drawn.bins[line.at].label[: len(label)] for line in drawn.thresholds] == [label]


def test_scores_of_a_classifier_are_drawn_with_their_threshold(pool: list[Candidate], tmp_path: Path):
    run = report_run.write(tmp_path, pool, extra='[image.nsfw]\nmodel = "some.onnx"\ndrop_at_or_above = 0.42\n')
    found = gathered(run)
    drawn = {each.key: each for each in found.distributions}["nsfw_percent"]
    scores = Counter(
        each.number % 100
        for each in pool
        if not (each.extract or each.judged(OWN)) and each.is_fetched and each.width is not None
    )
    assert [bin_.kept + bin_.dropped for bin_ in drawn.bins] == [
        sum(scores[score] for score in range(*ends)) for ends in pairwise([0, *range(2, 101, 5), 101])
    ]
    assert [(line.label, drawn.bins[line.at].label) for line in drawn.thresholds] == [
        ("0.42 or more", "0.42\u20130.47")
    ]
    curve = {each.key: each for each in found.thresholds}["drop_at_or_above"]
    (own,) = curve.thresholds
    good = [each.number % 100 for each in pool if report_run.outcome(each, OWN)[0] in ("", "decontaminate")]
    assert (curve.bins[own.at].label, curve.bins[own.at].kept) == ("0.42", sum(score < 42 for score in good))


# Other thresholds ----------------------------------------------------------------------------------------------------


def kept_with(pool: list[Candidate], limits: Limits, *, of_image: bool) -> int:
    """Candidates that pass every rule of the stage, judged anew; of images, those whose image the run has fetched."""
    if not of_image:
        return sum(not each.extract and each.judged(limits) in ([], ["pair_repeated"]) for each in pool)
    return sum(
        not each.extract and not each.judged(OWN) and each.is_fetched and not each.image(limits) for each in pool
    )


def limits_at(key: str, label: str) -> Limits:
    """The limits of a run whose threshold stands at this stop of its curve."""
    value = 10**9 if label == "no limit" else float(label.replace(",", ""))
    match key:
        case "vocabulary_size":
            in_order = sorted((count for count, ngrams in NGRAMS.items() for _ in range(ngrams)), reverse=True)
            return replace(OWN, rarest=in_order[int(value) - 1])
        case "aspect_ratio_below":
            return replace(OWN, aspect=Fraction(label))
        case "short_side_above_px":
            return replace(OWN, short_side=int(value))
        case _:
            return replace(OWN, **{key.removesuffix("_at_most") if "_per_" in key else key: int(value)})


def test_every_stop_of_every_curve_keeps_what_judging_anew_keeps(pool: list[Candidate], found: Numbers):
    names = ["words_at_least", "words_at_most", "vocabulary_size", "images_per_text_at_most", "texts_per_image_at_most"]
    assert [each.key for each in found.thresholds] == [*names, "short_side_above_px", "aspect_ratio_below"]
    for each in found.thresholds:
        of_image = each.key not in names
        assert len(each.bins) > 3 or each.key == "texts_per_image_at_most", each.key
        for part in each.bins:
            assert part.kept == kept_with(pool, limits_at(each.key, part.label), of_image=of_image), (each.key, part)
        (own,) = each.thresholds
        assert each.bins[own.at].kept == kept_with(pool, OWN, of_image=of_image)
        assert len({part.kept + part.dropped for part in each.bins}) == 1
        assert len({part.kept for part in each.bins}) > 2, each.key


def test_a_chart_without_values_is_left_out(pool: list[Candidate], tmp_path: Path):
    calm = [replace(each, images_per_text=1, texts_per_image=1) for each in pool]
    found = gathered(report_run.write(tmp_path, calm, but=["audit/image_measures.parquet"]))
    assert [each.key for each in found.thresholds] == ["words_at_least", "words_at_most", "vocabulary_size"]
    keys = ["words", "rarest_log2", "images_per_text", "texts_per_image", "cosine"]
    assert [each.key for each in found.distributions] == keys


# Galleries -----------------------------------------------------------------------------------------------------------


def test_a_card_has_what_was_measured(pool: list[Candidate], tmp_path: Path):
    run = report_run.write(tmp_path, pool[:50])
    measured = {
        "width": 204,
        "height": 611,
        "images_per_text": 1_200,
        "http_code": 404,
        "similarity": 0.9875,
        "test_set": "coco",
        "test_image": "7.jpg",
    }
    broken = {"words": None, "file": "a.warc.gz", "offset": 12_345, "error": "cut"}
    report_run.write_samples(
        run,
        [
            report_run.sample("judge", "text_too_long", 1, **measured),
            report_run.sample("extract", "record_broken", 2, **broken),
        ],
    )
    first, second = gathered(run).samples or []
    assert (first.stage, first.cards[0].measured) == (
        "extract",
        [("found in", "a.warc.gz, offset 12,345"), ("error", "cut")],
    )
    assert second.cards[0].measured == [
        ("words", "4"),
        ("images of the text", "1,200"),
        ("HTTP status", "404"),
        ("size", "204 \u00d7 611 px, ratio 2.99"),  # below 3, which the rule allows
        ("cosine", "0.9875"),
        ("near", "coco: 7.jpg"),
    ]


# The rest ------------------------------------------------------------------------------------------------------------


def test_frequent_things_are_as_the_run_has_them(found: Numbers):
    frequent = found.frequent
    assert [(each["value"], each["count"]) for each in frequent["texts"]] == [("click here", 3_000), ("logo", 40)]
    assert [(each["value"], each["count"]) for each in frequent["ngrams_out"]] == [("qx", 2)]
    assert [host["host"] for host in frequent["hosts"]] == ["b.example", "a.example"]
    assert [tuple(each.values()) for each in frequent["scripts"]] == [
        ("Latin", 8, 5, {"text_too_short": 3}, 2),
        ("Han", 2, 0, {"text_too_long": 2}, 2),
    ]


def test_fidelity_marks_what_is_not_the_papers(pool: list[Candidate], tmp_path: Path):
    extra = "\n[image]\nshort_side_above_px = 128\naspect_ratio_below = 2.5\ntexts_per_image_at_most = 2000\n"
    run = report_run.write(tmp_path, pool, extra=extra)
    config = run / "config.toml"
    config.write_text(config.read_text(encoding="utf-8").replace('test_sets = ["tests/coco"]', ""), encoding="utf-8")
    found = gathered(run).fidelity
    marks = {rule.rule: rule.mark for rule in found.rules}
    assert marks["Words, at least"] == marks["Words, at most"] == marks["Images of a text, at most"] == "same"
    assert (marks["Short side, above"], marks["Aspect ratio, below"], marks["Texts of an image, at most"]) == (
        "looser",
        "stricter",
        "looser",
    )
    assert marks["Pornographic images"] == marks["Test images"] == "off"
    assert any("no test set was named" in warning for warning in found.warnings)
    assert any("no classifier was set" in warning for warning in found.warnings)


def test_rules_that_are_ours_and_dropped_something_are_counted(pool: list[Candidate], found: Numbers):
    reasons = Counter(failed[0] for each in pool for _, failed in [report_run.outcome(each, OWN)] if failed)
    ours = {reason: number for reason, number in reasons.items() if reason not in PAPERS}
    assert {rule.rule: rule.rows for rule in found.fidelity.ours} == ours
    assert {"pair_repeated", "alt_missing", "not_in_archive"} <= ours.keys()


OPTIONAL = [
    *(f"audit/{name}.parquet" for name in (
        "failed", "samples", "frequent", "edge_ngrams", "hosts", "scripts", "near_duplicates/similarity",
        "near_duplicates/gallery", "text_measures", "image_measures", "funnel", "dropped_images",
    )),
    "audit/near_duplicates/found.json",
    "audit/histograms.json",
]  # fmt: skip


@pytest.mark.parametrize(
    "but", [*([name] for name in OPTIONAL), OPTIONAL], ids=lambda names: names[0] if len(names) == 1 else "all"
)
def test_a_run_without_a_file_has_the_rest(pool: list[Candidate], tmp_path: Path, but: list[str]):
    found = gathered(report_run.write(tmp_path, pool[:200], but=but))
    assert found.funnel[-1].rows == sum(report_run.outcome(each, OWN) == ("", []) for each in pool[:200])
    assert found.to_json()["funnel"]

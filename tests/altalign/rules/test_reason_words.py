from altalign.data.counts import Counts
from altalign.data.reasons import Stage
from altalign.rules import reason_words
from altalign.settings.curate import CurateConfig

CONFIG = CurateConfig.from_values({"run": {"folder": "run"}, "input": {"paths": ["in"]}}, where="the test")


def test_the_reason_that_took_most_of_its_stage_is_told_with_all_of_its_settings() -> None:
    counts = Counts(
        {
            (Stage.EXTRACT, "a", "alt_empty"): 100,
            (Stage.EXTRACT, "a", "kept"): 60,
            (Stage.JUDGE, "a", "kept"): 60,
            (Stage.FETCH, "a", "http_refused"): 60,
        }
    )
    assert reason_words.largest_drop(counts, CONFIG) == (
        "fetch dropped 60 of 60 as http_refused "
        "(fetch.allow_addresses = [], fetch.ports = [80, 443], fetch.blocked_domains = [])"
    )


def test_where_nothing_was_dropped_nothing_is_told() -> None:
    assert not reason_words.largest_drop(Counts({(Stage.EXTRACT, "a", "kept"): 60}), CONFIG)

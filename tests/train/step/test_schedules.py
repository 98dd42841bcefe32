import pytest
from hypothesis import given
from hypothesis import strategies as st

from altalign.train.settings.training import ScheduleSettings
from altalign.train.step.learner import rate_of

ALIGN = ScheduleSettings()
SHORT = {"steps": 12, "peak": 1.0, "warmup_steps": 4}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.0),
        (1, 1e-7),
        (5_000, 5e-4),
        (9_999, 9.999e-4),
        (10_000, 1e-3),
        (605_000, 5e-4),
        (1_199_999, 1e-3 / 1_190_000),
        (1_200_000, 0.0),
    ],
)
def test_the_papers_schedule(step: int, expected: float) -> None:
    assert rate_of(step, ALIGN) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"decay": "linear"}, [0, 0.25, 0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0, 0]),
        (
            {"decay": "linear", "floor": 0.5},
            [0, 0.25, 0.5, 0.75, 1, 0.9375, 0.875, 0.8125, 0.75, 0.6875, 0.625, 0.5625, 0.5, 0.5],
        ),
        (
            {"decay": "cosine"},
            [0, 0.25, 0.5, 0.75, 1, 0.96194, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.03806, 0, 0],
        ),
        ({"decay": "constant"}, [0, 0.25, 0.5, 0.75, *[1] * 10]),
        (
            {"decay": "step", "every": 3},
            [0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 0.2, 0.2, 0.2, 0.04, 0.04, 0.04],
        ),
        ({"decay": "linear", "warmup_steps": 0, "steps": 2}, [1, 0.5, 0]),
        ({"decay": "step", "warmup_steps": 0, "every": 2}, [1, 1, 1, 0.2, 0.2, 0.04]),
        ({"decay": "linear", "warmup_steps": 2, "steps": 2}, [0, 0.5, 1]),  # nothing is left to fall in
    ],
)
def test_rates_of_every_step(settings: dict[str, object], expected: list[float]) -> None:
    chosen = ScheduleSettings.from_values({**SHORT, **settings}, where="test")
    assert [rate_of(step, chosen) for step in range(len(expected))] == pytest.approx(expected, abs=1e-5)


@given(
    st.integers(1, 1000).flatmap(lambda steps: st.tuples(st.just(steps), st.integers(0, steps))),
    st.sampled_from(["linear", "cosine", "step", "constant"]),
    st.floats(1e-6, 1),
)
def test_it_grows_then_falls_and_stays_between_floor_and_peak(
    lengths: tuple[int, int], decay: str, peak: float
) -> None:
    steps, warmup = lengths
    chosen = ScheduleSettings.from_values(
        {"steps": steps, "warmup_steps": warmup, "decay": decay, "peak": peak, "every": 7}, where="test"
    )
    rates = [rate_of(step, chosen) for step in range(steps + 3)]
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert max(rates) == rates[warmup] == pytest.approx(peak)
    assert min(rates) >= 0

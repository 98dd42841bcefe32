"""The budget of bytes: never more than it has, and nobody waits for ever."""

import asyncio
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.pipelines.web.schedule.budget import Budget, Share


@given(
    bodies=st.lists(
        st.tuples(st.integers(1, 100), st.integers(1, 40), st.booleans(), st.booleans()), min_size=1, max_size=30
    ),
    most=st.integers(1, 300),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_bodies_of_any_size_in_any_order_all_come_and_stay_within_it(
    bodies: list[tuple[int, int, bool, bool]], most: int, seed: int
) -> None:
    """Bodies (bytes, step, whether it comes whole, whether it breaks off), all at once, with a slow consumer."""
    rng, body_most, arrived, seen = random.Random(seed), 100, [], []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        budget = Budget(most, body_most, loop.call_soon)
        kept: asyncio.Queue[int] = asyncio.Queue()

        async def read(size: int, step: int, *, fails: bool, is_cancelled: bool) -> None:
            share = Share()
            try:
                while share.bytes < size:
                    wanted = min(step, size - share.bytes)
                    if not budget.takes(share, wanted):
                        await budget.take(share, wanted)
                    seen.append((budget.used, share.bytes))
                    if fails and share.bytes > size // 2:
                        raise ConnectionError
                    await asyncio.sleep(0)
                    if is_cancelled and rng.random() < 0.2:
                        raise asyncio.CancelledError
            except (ConnectionError, asyncio.CancelledError):
                budget.end(share)
            else:
                budget.end(share, share.bytes)
                kept.put_nowait(size)
            finally:
                arrived.append(size)

        async def consume() -> None:
            while True:
                size = await kept.get()
                await asyncio.sleep(0)
                budget.give_back(size)

        consumer = asyncio.create_task(consume())
        await asyncio.gather(
            *(read(size, step, fails=fails, is_cancelled=cancelled) for size, step, fails, cancelled in bodies)
        )
        while budget.in_flight:
            await asyncio.sleep(0)
        consumer.cancel()

    asyncio.run(main())
    assert sorted(arrived) == sorted(size for size, *_ in bodies)
    assert all(used <= most or used == alone for used, alone in seen)


def test_who_waits_longest_is_served_first() -> None:
    async def main() -> list[str]:
        budget, served = Budget(100, 10, asyncio.get_running_loop().call_soon), []
        full = Share()
        assert budget.takes(full, 90)

        async def wait(name: str, count: int) -> None:
            share = Share()
            assert not budget.takes(share, count)
            await budget.take(share, count)
            served.append(name)
            budget.end(share)

        waiting = [
            asyncio.create_task(wait(name, count)) for name, count in (("large", 60), ("small", 1), ("other", 50))
        ]
        await asyncio.sleep(0)
        assert served == []
        budget.end(full)
        await asyncio.gather(*waiting)
        return served

    assert asyncio.run(main()) == ["large", "small", "other"]


def test_who_leaves_while_it_waits_leaves_nothing() -> None:
    async def main() -> None:
        budget = Budget(100, 100, asyncio.get_running_loop().call_soon)
        first, second = Share(), Share()
        assert budget.takes(first, 60) is False  # nothing is shared: all is kept back for one body
        await budget.take(first, 60)
        waiting = asyncio.create_task(budget.take(second, 60))
        await asyncio.sleep(0)
        assert not budget.has_room(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        budget.end(second)
        budget.end(first)
        assert (budget.used, budget.has_room(1)) == (0, True)

    asyncio.run(main())


def test_bytes_come_back_from_other_threads() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        budget, woken = Budget(1000, 10, loop.call_soon_threadsafe), asyncio.Event()
        budget.on_room = woken.set
        for _ in range(90):
            share = Share()
            assert budget.takes(share, 10)
            budget.end(share, 10)
        assert not budget.has_room(100)
        woken.clear()
        threads = [threading.Thread(target=lambda: [budget.give_back(10) for _ in range(9)]) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert budget.in_flight == 0
        await woken.wait()
        assert (budget.used, budget.has_room(990)) == (0, True)

    asyncio.run(main())


def test_bodies_that_arrive_leave_room_for_those_that_are_being_taken() -> None:
    async def main() -> None:
        budget = Budget(110, 10, asyncio.get_running_loop().call_soon)  # of which 10 are kept back
        reading = [Share() for _ in range(6)]
        assert [budget.takes(share, 10) for share in reading] == [True] * 5 + [False]
        for share in reading[:5]:
            budget.end(share, 10)
        assert [budget.takes(share, 10) for share in reading] == [True] * 5 + [False]
        for share in reading[:5]:
            budget.end(share, 10)
        assert not budget.has_room(10)
        assert not budget.takes(reading[0], 10)
        budget.give_back(10)
        await asyncio.sleep(0)
        assert budget.takes(reading[0], 10)

    asyncio.run(main())

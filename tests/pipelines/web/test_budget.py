"""The budget of bytes: never more than it has, and no body waits for ever."""

import asyncio
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.pipelines.web.calls import Request, Target
from altalign.pipelines.web.schedule import Budget


def body() -> Request:
    """A request, whose body takes bytes."""
    return Request(Target.parse("http://a.test/"), 100, keeps_alive=True)


@given(
    bodies=st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=30),
    most=st.integers(1, 300),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_bodies_of_any_size_all_come_in_order_and_stay_within_it(
    bodies: list[tuple[int, bool]], most: int, seed: int
) -> None:
    """Bodies (bytes, whether it breaks off), all at once, and a slow consumer."""
    rng, begun, seen = random.Random(seed), [], []

    async def main() -> None:
        budget = Budget(most, asyncio.get_running_loop().call_soon)
        kept: asyncio.Queue[int] = asyncio.Queue()

        async def read(number: int, size: int, *, breaks_off: bool) -> None:
            request = body()
            await budget.take(request, size)
            begun.append(number)
            seen.append((budget.used, request.share))
            await asyncio.sleep(0)
            arrived = rng.randint(0, size)
            budget.end(request, 0 if breaks_off else arrived)
            if not breaks_off:
                kept.put_nowait(arrived)

        async def consume() -> None:
            while True:
                size = await kept.get()
                await asyncio.sleep(0)
                budget.give_back(size)

        consumer = asyncio.create_task(consume())
        await asyncio.gather(*(read(number, size, breaks_off=breaks) for number, (size, breaks) in enumerate(bodies)))
        while budget.used:
            await asyncio.sleep(0)
        consumer.cancel()

    asyncio.run(main())
    assert begun == list(range(len(bodies)))
    assert all(used <= most or used == alone for used, alone in seen)


def test_a_body_that_leaves_while_it_waits_leaves_nothing() -> None:
    async def main() -> None:
        budget = Budget(100, asyncio.get_running_loop().call_soon)
        first, second, third = body(), body(), body()
        await budget.take(first, 60)
        waiting = [asyncio.create_task(budget.take(each, size)) for each, size in ((second, 60), (third, 40))]
        await asyncio.sleep(0)
        assert not budget.has_room(1)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        budget.end(second)
        await waiting[1]  # for which there was room, but not its turn
        budget.end(first)
        budget.end(third)
        assert (budget.used, budget.has_room(1)) == (0, True)

    asyncio.run(main())


def test_bytes_come_back_from_other_threads() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        budget, woken = Budget(1000, loop.call_soon_threadsafe), asyncio.Event()
        budget.on_room = woken.set
        for _ in range(90):
            request = body()
            await budget.take(request, 10)
            budget.end(request, 10)
        assert not budget.has_room(110)
        woken.clear()
        threads = [threading.Thread(target=lambda: [budget.give_back(10) for _ in range(9)]) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while budget.used:
            woken.clear()
            await woken.wait()
        assert budget.has_room(1000)

    asyncio.run(main())

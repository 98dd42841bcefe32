"""The budget of bytes: never more than it has, and no body waits for ever."""

import asyncio
import random
import threading
from contextlib import AbstractContextManager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from altalign.pipelines.web.calls import Request, Target
from altalign.pipelines.web.schedule import Budget

BODY_BYTES = 100


def body() -> Request:
    """A request, whose body takes bytes."""
    return Request(Target.parse("http://a.test/"), BODY_BYTES, keeps_alive=True)


@given(
    bodies=st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, BODY_BYTES - 30), st.booleans()), min_size=1, max_size=30
    ),
    most=st.integers(1, 300),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None)
def test_bodies_of_any_size_in_any_order_all_come_and_stay_within_it(
    bodies: list[tuple[int, int, bool]], most: int, seed: int
) -> None:
    """Bodies (bytes of the first step and of the second, whether it breaks off), all at once, and a slow consumer."""
    rng, arrived, seen = random.Random(seed), [], []

    async def main() -> None:
        budget = Budget(most, BODY_BYTES, asyncio.get_running_loop().call_soon)
        kept: asyncio.Queue[int] = asyncio.Queue()

        async def read(first: int, second: int, *, breaks_off: bool) -> None:
            request = body()
            try:
                for count in filter(None, (first, second)):
                    await budget.take(request, count)
                    seen.append((budget.used, request.share))
                    await asyncio.sleep(0)
                    if breaks_off and rng.random() < 0.5:
                        raise asyncio.CancelledError
            except asyncio.CancelledError:
                budget.end(request)
            else:
                budget.end(request, first + second)
                kept.put_nowait(first + second)
            finally:
                arrived.append((first, second, breaks_off))

        async def consume() -> None:
            while True:
                size = await kept.get()
                await asyncio.sleep(0)
                budget.give_back(size)

        consumer = asyncio.create_task(consume())
        await asyncio.gather(*(read(first, second, breaks_off=breaks) for first, second, breaks in bodies))
        while budget.used:
            await asyncio.sleep(0)
        consumer.cancel()

    asyncio.run(main())
    assert sorted(arrived) == sorted(bodies)
    assert all(used <= most or used == alone for used, alone in seen)


def test_a_body_that_leaves_while_it_waits_leaves_nothing() -> None:
    async def main() -> None:
        budget = Budget(100, 100, asyncio.get_running_loop().call_soon)
        first, second = body(), body()
        await budget.take(first, 60)  # all is reserved, but nothing is in flight
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


def test_bytes_that_come_back_wake_only_whom_they_are_enough_for() -> None:
    """A slow consumer gives back one body at a time, and as many wait as there are threads."""
    waits = list[Request]()

    class Noted(Request):
        def held_up(self) -> AbstractContextManager[None]:
            waits.append(self)
            return super().held_up()

    async def main() -> None:
        budget, begun = Budget(100, 0, asyncio.get_running_loop().call_soon), list[Request]()
        await budget.take(first := body(), 100)

        async def read(request: Request) -> None:
            await budget.take(request, 100)
            begun.append(request)
            await asyncio.sleep(0)
            budget.end(request)

        requests = [Noted(Target.parse("http://a.test/"), BODY_BYTES, keeps_alive=True) for _ in range(20)]
        reading = [asyncio.create_task(read(request)) for request in requests]
        await asyncio.sleep(0)
        budget.end(first)
        await asyncio.gather(*reading)
        assert begun == waits == requests  # each once, in order

    asyncio.run(main())


def test_bytes_come_back_from_other_threads() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        budget, woken = Budget(1000, 10, loop.call_soon_threadsafe), asyncio.Event()
        budget.on_room = woken.set
        for _ in range(90):
            request = body()
            await budget.take(request, 10)
            budget.end(request, 10)
        assert not budget.has_room(100)
        woken.clear()
        threads = [threading.Thread(target=lambda: [budget.give_back(10) for _ in range(9)]) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        await woken.wait()
        assert (budget.used, budget.has_room(990)) == (0, True)

    asyncio.run(main())

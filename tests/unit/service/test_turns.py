"""Turns at the store: writers before readers, few reads of each peer."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from onceward.coordinator.service.shares import Shares
from onceward.coordinator.service.turns import Turns


class Users:
    """Users of turns, and in which order they got theirs."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[str] = []
        self.go_on = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str) -> None:
        """Wait for a turn; the first letter says whose."""
        self._tasks[name] = asyncio.create_task(self._use(name))
        await asyncio.sleep(0)

    async def _use(self, name: str) -> None:
        async with self.turns.of_writer() if name[0] == "w" else self.turns.of_reader():
            self.order.append(name)
            await self.go_on.wait()

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    async def all(self) -> list[str]:
        self.go_on.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        return self.order


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


def test_writers_go_before_readers_that_came_earlier_and_all_get_their_turn() -> None:
    async def body() -> None:
        users = Users()
        for name in ("r1", "r2", "r3", "w1", "w2", "r4"):
            await users.begin(name)
        assert await users.all() == ["r1", "w1", "w2", "r2", "r3", "r4"]

    run(body())


@pytest.mark.parametrize("cancelled", ["w1", "r2"])
@pytest.mark.parametrize("moments", [0, 1, 2, 3, 4, 5, 6])
def test_one_that_is_cancelled_at_any_moment_blocks_no_other_one(cancelled: str, moments: int) -> None:
    async def body() -> None:
        users = Users()
        for name in ("w0", "r2", "w1", "r3", "w4"):
            await users.begin(name)
        users.go_on.set()
        for _ in range(moments):
            await asyncio.sleep(0)
        users.cancel(cancelled)
        others = {"w0", "r2", "w1", "r3", "w4"} - {cancelled}
        assert others <= set(await users.all())
        async with asyncio.timeout(30), users.turns.of_reader():
            pass

    run(body())


class Named:
    """Says who calls."""

    calling = ""


def test_a_peer_has_few_reads_at_a_time_and_delays_no_other_peer() -> None:
    async def body() -> None:
        guard = Named()
        shares, inside, go_on = Shares(guard, reads=2), list[str](), asyncio.Event()  # type: ignore[arg-type]

        async def read() -> None:
            async with shares.one():
                inside.append(guard.calling)
                await go_on.wait()

        tasks = []
        for guard.calling in ("many", "many", "many", "many", "other"):
            tasks.append(asyncio.create_task(read()))
            await asyncio.sleep(0)
        assert inside == ["many", "many", "other"]
        go_on.set()
        await asyncio.gather(*tasks)
        assert len(inside) == 5

    run(body())

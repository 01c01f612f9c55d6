"""How long is waited between attempts to reach a peer."""

import asyncio
from collections.abc import Iterable

import pytest

from support.waiting import turns
from whimbrel.broker.cluster import backoff
from whimbrel.broker.cluster.backoff import RETRY_S_MAX, RETRY_S_MIN, Pause, keep_trying
from whimbrel.broker.cluster.metadata_sync import LeaseSync


class Over(Exception):
    pass


async def pauses(outcomes: Iterable[bool]) -> list[float]:
    waited: list[float] = []
    left = iter(outcomes)

    async def step() -> bool:
        for outcome in left:
            return outcome
        raise Over

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    with pytest.raises(Over):
        await keep_trying(step, pause)
    return waited


async def test_pauses_double_up_to_a_bound() -> None:
    waited = await pauses([False] * 2000)
    assert waited[:5] == [RETRY_S_MIN, 0.2, 0.4, 0.8, RETRY_S_MAX]
    assert set(waited[5:]) == {RETRY_S_MAX}


async def test_after_it_got_through_the_pauses_are_short_again() -> None:
    assert await pauses([False, False, True, True, False, False]) == [0.1, 0.2, 0.1, 0.1, 0.1, 0.2]


async def test_a_pause_ends_when_there_is_a_reason_also_from_before() -> None:
    pause = Pause()
    pause.end()
    await pause(60.0)
    pause.begin()
    waiting = asyncio.ensure_future(pause(60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    pause.end()
    await asyncio.wait_for(waiting, 10)


async def test_leases_are_exchanged_as_soon_as_a_master_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "RETRY_S_MIN", 60.0)
    monkeypatch.setattr(backoff, "RETRY_S_MAX", 60.0)
    named, reached = [""], asyncio.Event()

    async def exchange(address: str) -> None:
        assert address == "10.0.0.1:8091"
        reached.set()
        await asyncio.Event().wait()

    leases = LeaseSync(address=lambda: named[0], exchange=exchange)
    running = asyncio.ensure_future(leases.run())
    await turns(3)  # it has tried, and waits
    named[0] = "10.0.0.1:8091"
    leases.hurry()
    await asyncio.wait_for(reached.wait(), 10)
    running.cancel()

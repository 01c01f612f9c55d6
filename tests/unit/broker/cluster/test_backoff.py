"""How long is waited between attempts to reach a peer."""

from collections.abc import Iterable

import pytest

from whimbrel.broker.cluster.backoff import RETRY_S_MAX, RETRY_S_MIN, keep_trying


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

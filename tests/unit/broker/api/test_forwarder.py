"""Calls handed on to another broker: what goes along, what comes back, and what is bounded."""

import asyncio
import time
from typing import Any

import pytest

from whimbrel.broker.api.forwarder import FORWARD_S_MAX, Forwarder
from whimbrel.deferred import Deferred
from whimbrel.errors import OwnerAway, Throttled, Unavailable
from whimbrel.rpc.api.calls import Metadata, Outbound
from whimbrel.rpc.server.handlers import Call

HEADERS = {
    "x-mq-client-id": "c@1",
    "x-mq-language": "JAVA",
    "authorization": "secret",
    "whimbrel-queue-id": "9",
}


class Target:
    """The other end."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.calls: list[tuple[Outbound[Any], dict[str, str], float]] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = 0

    def dial(self, address: str) -> "Target":
        self.dialled.append(address)
        return self

    async def perform(self, outbound: Outbound[Any], metadata: Metadata, timeout_s: float) -> Any:
        self.calls.append((outbound, dict(metadata), timeout_s))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return outbound.decode([answer], {})

    async def close(self) -> None:
        self.closed += 1


def forwarded(
    forwarder: Forwarder, payload: bytes = b"request", *, address: str = "b:1", deadline: float | None = None
) -> Deferred[Any]:
    call = Call("/s/SendMessage", "10.0.0.7:5000", HEADERS, deadline)
    return forwarder.forward(
        call, payload, target="broker-b", address=address, hop="owner",
        headers=[("whimbrel-queue-id", "3")], decode=bytes.upper,
    )  # fmt: skip


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_call_and_its_client_go_along_and_the_answer_comes_back() -> None:
    target = Target()
    forwarder = Forwarder(target.dial)
    answer = forwarded(forwarder)
    await settled()
    outbound, metadata, timeout_s = target.calls[0]
    assert (outbound.path, outbound.payload, timeout_s) == ("/s/SendMessage", b"request", FORWARD_S_MAX)
    assert metadata == {
        "x-mq-client-id": "c@1",
        "x-mq-language": "JAVA",
        "x-whimbrel-client-peer": "10.0.0.7:5000",
        "whimbrel-hops": "owner",
        "whimbrel-queue-id": "3",
    }
    assert not answer.done
    target.answers.put_nowait(b"stored")
    await settled()
    assert answer.result == b"STORED" and (forwarder.bytes, len(forwarder.tasks)) == (0, 0)


async def test_the_clients_deadline_counts() -> None:
    target = Target()
    forwarder = Forwarder(target.dial)
    forwarded(forwarder, deadline=time.monotonic() + 2)
    await settled()
    assert target.calls[0][2] < 2
    await forwarder.close()


async def test_an_owner_that_is_away_or_fails_is_named() -> None:
    target = Target()
    forwarder = Forwarder(target.dial)
    with pytest.raises(OwnerAway, match="broker-b"):
        forwarded(forwarder, address="")
    answer = forwarded(forwarder)
    target.answers.put_nowait(Unavailable("connection refused"))
    await settled()
    assert isinstance(answer.error, OwnerAway) and answer.error.code == 50002
    assert "broker-b" in str(answer.error) and "connection refused" in str(answer.error)


async def test_calls_and_bytes_under_way_are_bounded() -> None:
    target = Target()
    forwarder = Forwarder(target.dial, calls_max=2, bytes_max=100)
    with pytest.raises(Throttled):
        forwarded(forwarder, b"x" * 101)
    first = forwarded(forwarder, b"x" * 60)
    with pytest.raises(Throttled):
        forwarded(forwarder, b"x" * 60)
    forwarded(forwarder)
    with pytest.raises(Throttled):
        forwarded(forwarder)
    target.answers.put_nowait(b"")
    await settled()
    assert first.done
    forwarded(forwarder, b"x" * 60)
    await forwarder.close()
    assert (forwarder.bytes, target.closed) == (0, 1)


async def test_a_connection_is_kept_until_the_broker_is_elsewhere() -> None:
    target = Target()
    forwarder = Forwarder(target.dial)
    for address in ("b:1", "b:1", "b:2"):
        forwarded(forwarder, address=address)
        await settled()
    assert (target.dialled, target.closed) == (["b:1", "b:2"], 1)
    await forwarder.close()


async def test_what_is_under_way_at_the_end_is_answered() -> None:
    forwarder = Forwarder(Target().dial)
    answer = forwarded(forwarder)
    await settled()
    await forwarder.close()
    assert isinstance(answer.error, OwnerAway)

"""Calls handed on to another server: what goes along, what comes back, and what is bounded."""

import asyncio
import time
from typing import Any

import pytest

from support.waiting import turns
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    ConnectionClosed,
    IllegalTopic,
    LeaderAway,
    NotMaster,
    NotReady,
    OwnerAway,
    RequestTimeout,
    Throttled,
    Unavailable,
)
from whimbrel.rpc.api.calls import Metadata, Outbound
from whimbrel.rpc.server.forwarder import (
    CONNECTION_CALLS_MAX,
    CONNECTIONS_MAX,
    FORWARD_S_MAX,
    TO_HOLDER,
    TO_LEADER,
    TO_OWNER,
    Answer,
    Forwarder,
    Target,
)
from whimbrel.rpc.server.handlers import Call

HEADERS = {
    "x-mq-client-id": "c@1",
    "x-mq-language": "JAVA",
    "authorization": "secret",
    "whimbrel-queue-id": "9",
}


class Request:
    """A message."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload

    def SerializeToString(self) -> bytes:
        return self.payload


class Far:
    """The other end of all connections."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.calls: list[tuple[Outbound[Any], dict[str, str], float]] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.closed = self.connects = 0
        self.refuses = False
        self.left = 0

    def dial(self, address: str) -> "Far":
        self.dialled.append(address)
        return self

    async def connect(self, timeout_s: float) -> None:
        self.connects += 1
        if self.refuses:
            raise NotReady(f"no connection within {timeout_s} s")

    async def perform(self, outbound: Outbound[Any], metadata: Metadata, timeout_s: float) -> Any:
        self.calls.append((outbound, dict(metadata), timeout_s))
        try:
            answer = await self.answers.get()
        except asyncio.CancelledError:
            self.left += 1
            raise
        if isinstance(answer, Exception):
            raise answer
        messages, trailers = answer if isinstance(answer, tuple) else ([answer], {})
        return outbound.decode(messages, trailers)

    async def close(self) -> None:
        self.closed += 1


def forwarded(
    forwarder: Forwarder, payload: bytes = b"request", *, address: str = "b:1", deadline: float | None = None
) -> Deferred[Any]:
    call = Call("/s/SendMessage", "10.0.0.7:5000", HEADERS, deadline)
    return forwarder.forward(
        call, Request(payload), [Target("broker-b", address)], TO_OWNER, bytes.upper,
        headers=[("whimbrel-queue-id", "3")],
    )  # fmt: skip


async def settled() -> None:
    await turns(5)


async def test_the_call_and_its_client_go_along_and_the_answer_comes_back() -> None:
    target = Far()
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
    target = Far()
    forwarder = Forwarder(target.dial)
    forwarded(forwarder, deadline=time.monotonic() + 2)
    await settled()
    assert target.calls[0][2] < 2
    await forwarder.close()


async def test_an_owner_that_is_away_or_fails_is_named() -> None:
    target = Far()
    forwarder = Forwarder(target.dial)
    with pytest.raises(OwnerAway, match="broker-b"):
        forwarded(forwarder, address="")
    answer = forwarded(forwarder)
    target.answers.put_nowait(Unavailable("connection refused"))
    await settled()
    assert isinstance(answer.error, OwnerAway) and answer.error.code == 50002
    assert "broker-b" in str(answer.error) and "connection refused" in str(answer.error)


async def test_calls_and_bytes_under_way_are_bounded() -> None:
    target = Far()
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
    target = Far()
    forwarder = Forwarder(target.dial)
    for address in ("b:1", "b:1", "b:2"):
        forwarded(forwarder, address=address)
        await settled()
    assert (target.dialled, target.closed) == (["b:1", "b:2"], 1)
    await forwarder.close()


async def test_what_is_under_way_at_the_end_is_answered() -> None:
    forwarder = Forwarder(Far().dial)
    answer = forwarded(forwarder)
    await settled()
    await forwarder.close()
    assert isinstance(answer.error, OwnerAway)


def asked(forwarder: Forwarder, *names: str, headers: dict[str, str] | None = None) -> Deferred[Any]:
    """Ask servers one after the other; b"no" sends on to the next."""
    targets = [Target(name, f"{name}:1") for name in names]
    call = Call("/s/EndTransaction", "10.0.0.7:5000", HEADERS | (headers or {}), None)
    return forwarder.forward(
        call, Request(b"end"), targets, TO_HOLDER, bytes, accept=lambda answer: answer != b"no"
    )


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([b"no", b"yes"], b"yes"),
        ([Unavailable("gone"), b"yes"], b"yes"),
        ([b"no", b"no"], b"no"),
        ([b"no", Unavailable("gone")], None),  # the one that is away may be the one
        ([Unavailable("gone"), b"no"], None),
    ],
)
async def test_several_are_asked_until_one_knows(answers: list[Any], expected: bytes | None) -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    for each in answers:
        far.answers.put_nowait(each)
    answer = asked(forwarder, "a", "b")
    await settled()
    assert far.dialled == ["a:1", "b:1"] and answer.result == expected
    assert expected is not None or (isinstance(answer.error, NotMaster) and "gone" in str(answer.error))
    await forwarder.close()


async def test_a_call_makes_each_hop_once_and_keeps_its_client() -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    with pytest.raises(NotMaster, match="it is not"):
        asked(forwarder, "a", headers={"whimbrel-hops": "owner,holder"})
    asked(forwarder, "a", headers={"whimbrel-hops": "owner", "x-whimbrel-client-peer": "10.0.0.1:1"})
    await settled()
    metadata = far.calls[0][1]
    assert (metadata["whimbrel-hops"], metadata["x-whimbrel-client-peer"]) == ("owner,holder", "10.0.0.1:1")
    await forwarder.close()


async def test_connections_that_no_call_uses_are_bounded() -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    asked(forwarder, "busy")
    await settled()
    for number in range(CONNECTIONS_MAX + 3):
        asked(forwarder, f"b{number}").cancel()
        far.answers.put_nowait(b"yes")
        await settled()
    assert len(forwarder.connections) <= CONNECTIONS_MAX + 1 and far.closed >= 3
    await forwarder.close()
    assert far.closed == len(far.dialled)


async def test_calls_are_counted_by_how_they_ended() -> None:
    far = Far()
    forwarder = Forwarder(far.dial, bytes_max=10)
    far.answers.put_nowait(b"yes")
    far.answers.put_nowait(Unavailable("gone"))
    for _ in range(2):
        forwarded(forwarder)
        await settled()
    with pytest.raises(Throttled):
        forwarded(forwarder, b"x" * 11)
    counted = {labels: histogram.count for labels, histogram in forwarder.seconds.items()}
    assert counted == {("SendMessage", "owner", result): 1 for result in ("answered", "away", "refused")}
    await forwarder.close()


def passed_on(
    forwarder: Forwarder, payload: bytes = b"request", *, address: str = "m:1", **options: Any
) -> Deferred[Answer]:
    call = Call("/s/ReceiveMessage", "10.0.0.7:5000", HEADERS, options.pop("deadline", None))
    return forwarder.pass_on(call, Request(payload), Target(address, address), TO_LEADER, **options)


async def test_the_leaders_answer_comes_back_as_it_is() -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    answer = passed_on(forwarder, stream=True, answer_s=28.0, headers=[("whimbrel-queue-id", "3")])
    await settled()
    outbound, metadata, timeout_s = far.calls[0]
    assert (outbound.payload, outbound.stream, timeout_s) == (b"request", True, 28.0)
    assert metadata["whimbrel-hops"] == "leader" and metadata["whimbrel-queue-id"] == "3"
    far.answers.put_nowait(([b"status", b"message"], {"whimbrel-reason": "X"}))
    await settled()
    assert answer.result == Answer([b"status", b"message"], {"whimbrel-reason": "X"})
    await forwarder.close()


@pytest.mark.parametrize("failure", [Unavailable("gone"), ConnectionClosed("lost"), RequestTimeout("late")])
async def test_a_call_that_was_handed_over_may_have_been_done(failure: Exception) -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    far.answers.put_nowait(failure)
    answer = passed_on(forwarder)
    await settled()
    assert isinstance(answer.error, LeaderAway) and answer.error.effect == "unknown"
    assert answer.error.code == 50002 and str(failure) in str(answer.error) and "m:1" in str(answer.error)
    await forwarder.close()


async def test_a_call_that_found_no_connection_has_had_no_effect() -> None:
    far = Far()
    far.refuses = True
    forwarder = Forwarder(far.dial)
    answer = passed_on(forwarder)
    await settled()
    assert isinstance(answer.error, NotReady) and answer.error.effect == "none" and far.calls == []
    counted = [labels for labels, _ in forwarder.seconds.items()]
    assert counted == [("ReceiveMessage", "leader", "refused")]
    await forwarder.close()


@pytest.mark.parametrize("refusal", [NotMaster("a slave"), IllegalTopic("blank")])
async def test_a_refusal_keeps_its_class(refusal: Exception) -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    far.answers.put_nowait(refusal)
    answer = passed_on(forwarder)
    await settled()
    assert type(answer.error) is type(refusal) and str(refusal) in str(answer.error)
    await forwarder.close()


async def test_a_client_that_leaves_ends_the_call_at_the_target() -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    answer = passed_on(forwarder)
    await settled()
    answer.cancel()
    await settled()
    assert (far.left, len(forwarder.tasks), forwarder.bytes) == (1, 0, 0)
    assert not answer.done
    await forwarder.close()


async def test_a_send_finds_room_beside_long_polls() -> None:
    far = Far()
    forwarder = Forwarder(far.dial)
    for _ in range(CONNECTION_CALLS_MAX + 1):
        passed_on(forwarder)
    await settled()
    assert [each.calls for each in forwarder.connections.values()] == [CONNECTION_CALLS_MAX, 1]
    await forwarder.close()


async def test_a_call_that_is_cut_off_by_the_end_is_answered() -> None:
    forwarder = Forwarder(Far().dial)
    answer = passed_on(forwarder)
    await settled()
    await forwarder.close()
    assert isinstance(answer.error, LeaderAway)

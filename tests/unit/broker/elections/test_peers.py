"""Channels to other members: opened anew, closed when nobody needs them, and whose cancellation is whose."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest

from support.waiting import eventually
from whimbrel.broker.elections.peers import Peers
from whimbrel.broker.elections.service import election_service
from whimbrel.errors import ConnectionClosed, RequestTimeout, Unavailable, WhimbrelError
from whimbrel.model.elections import SealAnswer, Suspicion
from whimbrel.rpc.api.calls import Outbound
from whimbrel.rpc.api.election_calls import seal, suspect
from whimbrel.rpc.server.serving import serve

GROUP = "a" * 32
CLOSED = grpc.ChannelConnectivity.SHUTDOWN
SEALED = SealAnswer(
    sealed=True, promised=7, promised_to=1, last_epoch=6, log_end=9, seat="b" * 32, why="", member=2,
    votes=True,
)  # fmt: skip
SUSPICION = Suspicion(
    silent=True, epoch=6, last_epoch=6, log_end=9, votes=True, seat="b" * 32, group=GROUP, member=2
)
ASK_SEAL: Outbound[SealAnswer] = seal("b", group=GROUP, epoch=7, candidate=1, log_begin=0)
ASK: Outbound[Suspicion] = suspect("b", group=GROUP, epoch=6, member=1)


@dataclass
class Member:
    """Answers suspicions at once, and seals when the test does."""

    waiting: list[Callable[[SealAnswer], object]] = field(default_factory=list)

    def suspicion(self, group: str, epoch: int) -> Suspicion:
        return SUSPICION

    def seal(
        self,
        group: str,
        epoch: int,
        candidate: int,
        log_begin: int,
        answer: Callable[[SealAnswer], object],
    ) -> None:
        self.waiting.append(answer)

    async def empty(self, group: str, epoch: int, leader: int) -> None:
        raise AssertionError("nobody asks for it")


@pytest.fixture(params=["native", "grpcio"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHIMBREL_CLIENT_TRANSPORT", request.param)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Member, str, Peers]]:
    """Give a member, its address, and channels."""
    member, peers = Member(), Peers()
    server = await serve(
        [election_service("b", member, member, asyncio.create_task)], host="127.0.0.1", port=0
    )
    try:
        async with asyncio.timeout(20):
            yield member, server.address, peers
    finally:
        await peers.close()
        await server.stop(grace=0)


async def asked(member: Member, peers: Peers, address: str) -> asyncio.Task[SealAnswer]:
    """Return a call that is under way."""
    task = asyncio.create_task(peers.call(address, ASK_SEAL, 15.0))
    await eventually(lambda: member.waiting)
    return task


def state(channel: grpc.aio.Channel) -> grpc.ChannelConnectivity:
    return channel.get_state()


async def test_a_channel_serves_call_after_call_and_is_opened_anew_after_a_failure() -> None:
    async with serving() as (_, address, peers):
        assert await peers.call(address, ASK) == SUSPICION
        first = peers.channels[address]
        assert await peers.call(address, ASK) == SUSPICION
        assert peers.channels[address] is first
        with pytest.raises(RequestTimeout):
            await peers.call(address, ASK_SEAL, 0.05)
        await eventually(lambda: state(first) is CLOSED)
        assert await peers.call(address, ASK) == SUSPICION
        assert peers.channels[address] is not first


async def test_a_channel_to_an_address_where_nobody_is_any_more_is_closed() -> None:
    async with serving() as (_, address, peers):
        await peers.call(address, ASK)
        channel = peers.channels[address]
        peers.forget(address)
        peers.forget("127.0.0.1:1")  # nobody was asked there
        await eventually(lambda: state(channel) is CLOSED)
        assert not peers.channels and not peers.calls


@pytest.mark.parametrize("failed", [False, True])
async def test_calls_under_way_over_a_channel_that_is_let_go_come_to_their_end(failed: bool) -> None:
    async with serving() as (member, address, peers):
        call = await asked(member, peers, address)
        channel = peers.channels[address]
        if failed:
            with pytest.raises(WhimbrelError):
                await peers.call(address, ASK_SEAL, 0.05)
        else:
            peers.forget(address)
        assert address not in peers.channels
        assert await peers.call(address, ASK) == SUSPICION  # over another one
        member.waiting[0](SEALED)
        assert await call == SEALED
        await eventually(lambda: state(channel) is CLOSED)
        assert len(peers.channels) == 1 and not peers.calls


async def test_a_call_whose_channel_is_closed_fails_and_is_not_cancelled() -> None:
    async with serving() as (member, address, peers):
        call = await asked(member, peers, address)
        await peers.close()
        with pytest.raises(ConnectionClosed, match="was closed"):
            await call
        assert not call.cancelled() and not peers.calls


async def test_a_task_that_is_cancelled_ends_so() -> None:
    async with serving() as (member, address, peers):
        call = await asked(member, peers, address)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert call.cancelled() and not peers.calls
        assert await peers.call(address, ASK) == SUSPICION  # the channel is as good as before


async def test_nobody_there_is_an_error() -> None:
    async with serving() as (_, _, peers):
        with pytest.raises((Unavailable, RequestTimeout)):
            await peers.call("127.0.0.1:1", ASK, 0.5)

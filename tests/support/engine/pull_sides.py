"""What answers pulls in a test: a whole master in this process, or a slave's parts over a store.

    master_side(root)   a master that runs
    SlaveSide(root)     a slave: its log may lag behind what is asked for; it makes no groups, commits nothing

Time stands still for both (`turned.py`): it moves when a test says so (`pass_time`). Both have a record of
nobody's in the log, so that the log may begin behind it.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from support.broker.consumption import FakeJournal
from support.engine.in_process import CLIENT, PEER, InProcess
from support.engine.turned import TurnedClock, TurnedMaster, turned_master
from support.remoting.handlers import NOW, Handlers
from support.store.stores import make_draft
from whimbrel.broker.api.pulls import PullService
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.counted import Counted
from whimbrel.errors import WhimbrelError
from whimbrel.model.wire import CLIENT_ID_HEADER, MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import reply_to_error
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import status_of

__all__ = ["MasterSide", "Side", "SlaveSide", "master_side"]

PULL = f"/{MESSAGING_SERVICE}/PullMessage"


class Side(Protocol):
    """What answers pulls, and what they may change.

    Attributes:
        sizes: of what went to consumers, by topic and group.
    """

    topics: Any
    groups: Any
    store: Any
    clients: Any
    creation: Any
    consumption: Any
    reads: Any
    counted: Counted

    def pull(self, call: Call, request: Any) -> Any:
        """Pull by `apache.rocketmq.v2`; return responses, or a `Deferred` of them."""

    def fail(self, call: Call, error: Exception) -> Any:
        """Return the responses to a call that has failed."""

    def request(self, peer: Any, command: Command) -> Any:
        """Handle a request by the remoting protocol."""

    async def turn(self) -> None:
        """Let the loop do what is due."""

    async def pass_time(self, seconds: int) -> None:
        """Put all clocks forward, and do what is due then."""

    def begin(self) -> None:
        """Put the wall clock back to where cases begin."""

    def position(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's position."""

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group's position."""

    def redirected(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where a reset sends pulls; None where none is in force."""

    def shared_out(self, group: str, topic: str) -> list[int]:
        """Return the queues that members have pulled."""

    def counts(self) -> tuple[int, int]:
        """Return how many pulls have found some messages, and how many none."""


def pull_call(headers: Mapping[str, str], deadline: float | None) -> Call:
    """Return a call of `PullMessage`."""
    return Call(PULL, PEER, {CLIENT_ID_HEADER: CLIENT, **headers}, deadline)


class MasterSide(TurnedMaster):
    """A broker that runs."""

    def __init__(self, broker: InProcess, clock: TurnedClock) -> None:
        super().__init__(broker, clock)
        self.method = self.stream("PullMessage")

    def pull(self, call: Call, request: Any) -> Any:
        """See `Side`."""
        return self.method.handle(call, request)

    def fail(self, call: Call, error: Exception) -> Any:
        """See `Side`."""
        assert self.method.fail is not None
        return self.method.fail(call, error)

    def request(self, peer: Any, command: Command) -> Any:
        """See `Side`."""
        assert self.broker.broker.remoting is not None
        return self.broker.broker.remoting.handles[command.code](peer, command)

    def begin(self) -> None:
        """See `Side`."""
        self.clock.now_ms = NOW

    def position(self, group: str, topic: str, queue_id: int) -> int | None:
        """See `Side`."""
        return self.broker.role.client_positions.get(group, topic, queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """See `Side`."""
        self.consumption.positions.reset_offset(group, topic, queue_id, offset)

    def redirected(self, group: str, topic: str, queue_id: int) -> int | None:
        """See `Side`."""
        found = self.broker.role.client_positions.redirected.get((group, topic, queue_id))
        return None if found is None else found[0]

    def shared_out(self, group: str, topic: str) -> list[int]:
        """See `Side`."""
        pulled = self.broker.role.reads.pulled
        assert pulled is not None
        return sorted(pulled.pulled.get((group, topic), ()))

    def counts(self) -> tuple[int, int]:
        """See `Side`."""
        traffic = self.broker.context.traffic
        return traffic.found, traffic.missed


class SlaveSide:
    """A slave's parts, over a store that lags behind."""

    def __init__(self, root: Path) -> None:
        self.handlers = handlers = Handlers(root, auto_create=False, master=False)
        self.topics, self.groups, self.clients = handlers.topics, handlers.groups, handlers.clients
        self.store, self.reads = handlers.store, handlers.reads
        self.creation, self.counted = handlers.reads.creation, Counted()
        self.reads.delivered = self.counted.took
        self.consumption = GroupConsumption(
            self.store,
            FakeJournal(),
            self.reads.waiting,
            broker_name="broker-a",
            broker_id=1,
            now_ms=lambda: NOW,
            schedule=lambda at_ms, callback: None,
            client_alive=lambda group, client_id: True,
            follows=True,
        )
        self.consumption.open()
        self.pulls = PullService(self.reads, self.store.lane_messages)
        self.store.append([make_draft()])

    def close(self) -> None:
        """Close the store."""
        self.consumption.close()
        self.handlers.close()

    def pull(self, call: Call, request: Any) -> Any:
        """See `Side`."""
        return self.pulls.pull(call, request)

    def fail(self, call: Call, error: Exception) -> Any:
        """See `Side`."""
        return [messaging.PullMessageResponse(status=status_of(error))]

    def request(self, peer: Any, command: Command) -> Any:
        """See `Side`."""
        try:
            return self.handlers.handles[command.code](peer, command)
        except WhimbrelError as error:
            return reply_to_error(error)

    async def turn(self) -> None:
        """See `Side`."""
        self.handlers.run_soon()

    async def pass_time(self, seconds: int) -> None:
        """See `Side`."""
        self.handlers.now_ms += seconds * 1000
        self.reads.waiting.expire()
        await self.turn()

    def begin(self) -> None:
        """Do nothing: there is no wall clock."""

    def position(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return what a pull has committed, which is nothing."""
        found = [one[3] for one in self.handlers.positions.commits if one[:3] == (group, topic, queue_id)]
        return found[-1] if found else None

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Do nothing: clients reset positions at a master."""

    def redirected(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return that there is no reset."""
        return None

    def shared_out(self, group: str, topic: str) -> list[int]:
        """Return that nobody has taken note."""
        return []

    def counts(self) -> tuple[int, int]:
        """Return that nobody counts."""
        return 0, 0


@asynccontextmanager
async def master_side(root: Path) -> AsyncIterator[MasterSide]:
    """Start a master, and stop it in the end."""
    async with turned_master(root) as master:
        yield MasterSide(master.broker, master.clock)

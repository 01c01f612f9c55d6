"""What answers pulls in a test: a whole master in this process, or a slave's parts over a store.

    master_side(root)   a master that runs
    SlaveSide(root)     a slave: its log may lag behind what is asked for; it makes no groups, commits nothing

Time stands still for both: clocks and the loop's timers move when a test says so (`pass_time`), so that what
waits until its time is over is answered at once. Both have a record of nobody's in the log, so that the log
may begin behind it.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from support.broker.consumption import FakeJournal
from support.engine.in_process import CLIENT, PEER, InProcess, in_process
from support.remoting.handlers import NOW, Handlers
from support.store.stores import StoppedClock, make_draft
from whimbrel.broker.api.pulls import PullService
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.counted import Counted
from whimbrel.errors import WhimbrelError
from whimbrel.model.wire import CLIENT_ID_HEADER, MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import reply_to_error
from whimbrel.rpc.server.handlers import Call, ServerStreamMethod
from whimbrel.rpc.server.responses import status_of

__all__ = ["MasterSide", "Side", "SlaveSide", "master_side", "run_on_turned_loop"]

TURNS = 8  # of the loop: a timer's task wakes in the one behind its time, and its work is done one later
PULL = f"/{MESSAGING_SERVICE}/PullMessage"

R = TypeVar("R")


class TurnedClock(StoppedClock):
    """Clocks that move when they are told to; the monotonic ones go on beside, as a machine's do."""

    ahead_ms = 0

    def monotonic(self) -> float:
        """See `Machine`."""
        return super().monotonic() + self.ahead_ms / 1000

    def monotonic_ns(self) -> int:
        """See `Machine`."""
        return super().monotonic_ns() + self.ahead_ms * 1_000_000


class TurnedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be put forward."""

    ahead_ms = 0

    def time(self) -> float:
        """Return the loop's time."""
        return super().time() + self.ahead_ms / 1000


def run_on_turned_loop(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine on a loop whose clock can be put forward."""
    with asyncio.Runner(loop_factory=TurnedLoop) as runner:
        return runner.run(work)


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


class MasterSide:
    """A broker that runs."""

    def __init__(self, broker: InProcess, clock: TurnedClock) -> None:
        role, context = broker.role, broker.context
        self.broker, self.clock = broker, clock
        self.topics, self.groups, self.clients = context.topics, context.groups, context.remoting_clients
        self.store, self.creation, self.consumption = role.store, role.creation, role.consumption
        self.reads, self.counted = role.reads, context.counted
        self.method = next(
            each
            for service in broker.broker.services
            if service.name == MESSAGING_SERVICE
            for each in service.methods
            if isinstance(each, ServerStreamMethod) and each.name == "PullMessage"
        )

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

    async def turn(self) -> None:
        """See `Side`."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: int) -> None:
        """See `Side`."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnedLoop)
        loop.ahead_ms += seconds * 1000
        self.clock.ahead_ms += seconds * 1000
        self.clock.now_ms += seconds * 1000
        await self.turn()

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
    """Start a master, and stop it in the end; metrics are on, since they count what is delivered."""
    clock = TurnedClock(NOW)
    async with in_process(root, machine=clock, metrics_port=0) as broker:
        broker.role.store.append([make_draft()])
        yield MasterSide(broker, clock)

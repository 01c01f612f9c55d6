"""A broker in this process, its third front, and a client of that; time moves when a test says so.

    talk(root, body)    starts them, and runs `body(lines)`
    lines.ask(line)     sends a line; returns its answer
    lines.pass_ms(ms)   puts all clocks forward, and does what is due

The broker can be ended and started again under the front, whose connections stay: `restart`, over the same
store; `kill`, over what a kill -9 leaves of it, which is what its files hold at that moment, without what the
process still has in memory or does at its end. Between the two (`stop` and `begin`) lines are refused.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl

from support.engine.in_process import InProcess, in_process
from support.engine.line_front import serve_lines
from support.engine.turned import TurnedClock, TurnedLoop, run_on_turned_loop
from support.remoting.handlers import NOW
from whimbrel.broker.roles.role import Role
from whimbrel.errors import NotReady, StoreFull
from whimbrel.model.topic import GroupConfig, MessageType
from whimbrel.store.codec import RecordDraft, StoredMessage, decode_record

__all__ = ["SMALL", "Got", "Lines", "engine_of", "talk"]

ANSWER_S = 10.0
NOTHING = "PULL none none 0 0"  # a line that changes nothing
TURNS = 16  # of the loop, after which what is due at once is done
QUEUES = 4
STEP_MS = 20_000  # in which longer times pass, so that what is renewed is
SMALL: dict[str, Any] = {
    "commitlog_file_size": 1 << 20, "consumequeue_file_size": 20_000, "index_slots": 1000,
    "index_entries": 4000,
}  # fmt: skip


class Got(NamedTuple):
    """A message as RECEIVE answers it."""

    queue: int
    offset: int
    attempt: int
    handle: str
    body: str
    properties: dict[str, str]

    @classmethod
    def of(cls, word: str) -> "Got":
        """Read the word of an answer."""
        queue, offset, attempt, handle, rest = word.split("/", 4)
        body, _, properties = rest.rpartition("?")
        return cls(int(queue), int(offset), int(attempt), handle, body, dict(parse_qsl(properties)))


def engine_of(role: Role | None) -> Any:
    """Return what a role decides verbs with, as a front takes it.

    Raises:
        NotReady: there is none.
    """
    if role is None:
        raise NotReady("this broker changes its role: try again")
    special: Any = role
    if role.NAME == "slave":
        refused = SimpleNamespace(by_id=partial(refuse, role), recall=partial(refuse, role))
        special = SimpleNamespace(ends=refused, recalls=SimpleNamespace(recalls=refused))
    return SimpleNamespace(
        sends=role.sends, reads=role.reads, takes=role.takes, settles=role.settles,
        ends=special.ends, recalls=special.recalls.recalls,
    )  # fmt: skip


def refuse(role: Role, *line: Any) -> Any:
    """Refuse what only a master does, as the role does."""
    return role.special_calls()["EndTransaction"](None, None)  # type: ignore[arg-type]


class Lines:
    """A client of the front, and the broker behind it.

    Attributes:
        root: of the store; another one after a kill.
        broker: that runs; None while none does.
    """

    def __init__(self, root: Path, clock: TurnedClock, **options: Any) -> None:
        self.root, self.clock, self.options = root, clock, options
        self.running: AsyncExitStack | None = None
        self.kills = self.asked = 0
        self.answers: dict[int, str] = {}
        self.broker: InProcess
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    @property
    def role(self) -> Any:
        """The role that serves; None while none does."""
        return None if self.running is None else self.broker.broker.role

    # The client

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Serve the front, and be connected to it; in the end the broker stops as well."""
        serve = partial(serve_lines, lambda: engine_of(self.role))
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as front:
            self.reader, self.writer = await asyncio.open_connection(*front.sockets[0].getsockname())
            try:
                yield
            finally:
                self.writer.close()
                await self.stop()

    def start(self, line: str) -> int:
        """Send a line; return its number."""
        self.asked += 1
        self.writer.write(f"{line}\n".encode())
        return self.asked

    async def answer(self, number: int) -> str:
        """Return the answer to a line."""
        while number not in self.answers:
            line = await asyncio.wait_for(self.reader.readline(), ANSWER_S)
            at, _, text = line.decode().rstrip("\n").partition(" ")
            self.answers[int(at)] = text
        return self.answers.pop(number)

    async def ask(self, line: str) -> str:
        """Send a line; return its answer."""
        return await self.answer(self.start(line))

    async def done(self, line: str) -> list[str]:
        """Send a line; return the words of its answer, which is OK."""
        ok, *words = (await self.ask(line)).split(" ")
        assert ok == "OK", (line, ok, words)
        return words

    async def got(self, number: int) -> list[Got]:
        """Return what a RECEIVE of that number is answered."""
        ok, *words = (await self.answer(number)).split(" ")
        assert ok == "OK", (ok, words)
        return [Got.of(word) for word in words]

    async def receive(self, rest: str) -> list[Got]:
        """Ask for messages; return them."""
        return await self.got(self.start(f"RECEIVE {rest}"))

    async def bodies(self, rest: str) -> list[str]:
        """Ask for messages; return their bodies."""
        return [one.body for one in await self.receive(rest)]

    async def unanswered(self) -> None:
        """Fail if anything that waits has its answer by now."""
        await self.turn()
        await self.arrived()
        assert not self.answers, self.answers

    async def arrived(self) -> None:
        """Return once all lines so far have come to the front, and what it has answered is here."""
        await self.ask(NOTHING)

    # Time

    async def turn(self) -> None:
        """Let the loop do what is due."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def pass_ms(self, ms: int) -> None:
        """Put all clocks forward, and do what is due on the way."""
        await self.arrived()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnedLoop)
        while ms > 0:
            step = min(ms, STEP_MS)
            loop.ahead_ms += step
            self.clock.ahead_ms += step
            self.clock.now_ms += step
            ms -= step
            await self.turn()

    # The broker

    async def begin(self) -> None:
        """Start the broker, with a topic of each type and the groups that tests use."""
        self.running = AsyncExitStack()
        made = in_process(self.root, machine=self.clock, **(SMALL | self.options))
        self.broker = await self.running.enter_async_context(made)
        for kind in MessageType:
            if self.broker.context.topics.get(kind.lower()) is None:
                self.broker.context.topics.put(self.broker.topic(kind.lower(), QUEUES).with_type(kind))

    async def stop(self) -> None:
        """Stop the broker."""
        if self.running is not None:
            running, self.running = self.running, None
            await running.aclose()

    async def restart(self) -> None:
        """Stop the broker and start it again."""
        await self.stop()
        await self.begin()

    async def kill(self) -> None:
        """Go on with what a kill -9 leaves at this moment."""
        self.kills += 1
        left = self.root.with_name(f"killed-{self.kills}")
        copy = ["cp", "-r", "--sparse=always", str(self.root), str(left)]
        await asyncio.to_thread(lambda: subprocess.run(copy, check=True))
        await self.stop()
        self.root = left

    async def kill_and_begin(self) -> None:
        """Do so, and start the broker again."""
        await self.kill()
        await self.begin()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Have the disk take no more messages; leases can be written down."""
        store = self.role.store

        def refuse_append(drafts: Sequence[RecordDraft]) -> NoReturn:
            raise StoreFull("the disk is full")

        store.append = refuse_append
        try:
            yield
        finally:
            del store.append

    def group(self, name: str, **fields: Any) -> GroupConfig:
        """Make a group, or change it."""
        made = GroupConfig(name=name, **fields)
        self.role.creation.groups.put(made)
        return made

    def records(self, topic: str) -> list[StoredMessage]:
        """Return a topic's messages as they are stored, queue by queue."""
        store = self.role.store
        if self.role.NAME == "master":
            store.end_tick()
        found = []
        for queue_id in range(2 * QUEUES):
            low, high = store.queue_range(topic, queue_id)
            for place, size, _ in store.queue_units(topic, queue_id, low, high - low):
                found.append(decode_record(store.read(place, size)))
        return found

    def stored(self, topic: str) -> list[tuple[int, bytes, dict[str, str]]]:
        """Return queue, body and properties of a topic's messages."""
        return [(one.queue_id, one.body, one.properties) for one in self.records(topic)]


def talk(root: Path, body: Callable[[Lines], Awaitable[None]], **options: Any) -> None:
    """Start a broker and its third front, and talk to it.

    Args:
        root: an empty directory.
        body: what is said.
        options: of `BrokerOptions`.
    """

    async def run() -> None:
        lines = Lines(root / "store", TurnedClock(NOW), **options)
        lines.root.mkdir()
        async with lines.connected():
            await lines.begin()
            await body(lines)

    run_on_turned_loop(run())

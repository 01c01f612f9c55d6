"""The third front behind a slave, during a switch, and behind a leader that waits for a majority.

A slave follows a master by real replication; then its master ends, and it becomes the master under its front.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.engine.lines import Lines, talk
from support.engine.members import Beside, Group, beside, elected, follow, promote, synced
from support.engine.turned import TurnedClock, run_on_turned_loop
from support.remoting.handlers import NOW
from support.waiting import until_async
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.roles.slave import SlaveRole
from whimbrel.model.topic import MessageType
from whimbrel.store.slave_store import SlaveStore

BLOCK_MS = 30_000


class Pair:
    """A master with its front, and a slave with another one."""

    def __init__(self, master: Lines, slave: Lines, besides: tuple[Beside, Beside]) -> None:
        self.master, self.slave, self.besides = master, slave, besides

    async def synced(self) -> None:
        """Wait until the slave has all."""
        await synced(self.master, self.slave)

    async def fail_over(self) -> Lines:
        """Lose the master; return the front of the slave, which is the master then."""
        await self.synced()
        await self.master.stop()
        await promote(self.slave, self.besides[1])
        return self.slave


def fail_over(root: Path, body: Callable[[Pair], Awaitable[None]], **options: Any) -> None:
    """Start both, with these options, and run `body`."""

    async def run(master: Lines) -> None:
        slave = Lines(root / "slave", master.clock, **options)
        slave.root.mkdir()
        with (
            beside(master.root, "master", master.clock) as one,
            beside(slave.root, "slave", slave.clock) as other,
        ):
            async with slave.connected():
                await follow(slave, other, master, one)
                await body(Pair(master, slave, (one, other)))

    talk(root, run, **options)


def test_a_slave_serves_reads_and_takes_and_refuses_what_changes_the_log(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        master, slave = pair.master, pair.slave
        master.group("c")
        for name in "ab":
            await master.done(f"SEND normal queue=0 id={name} {name}")
        half = (await master.done("SEND transaction transaction=yes id=t x"))[-1]
        await pair.synced()
        assert await slave.ask("PULL normal c 0 0") == "OK 2 0:a 1:b"
        assert await slave.ask("PULL normal c 0 9") == "OK 9"  # its log may lag behind
        held = await slave.receive(f"normal c invisible={BLOCK_MS}")
        assert [one.body for one in held] == ["a", "b"]
        assert await slave.ask(f"ACK normal c {held[0].handle}") == "OK"
        await slave.done(f"CHANGE normal c {held[1].handle} {BLOCK_MS}")
        for line, reason in (
            ("SEND normal id=x x", "NOT_WRITABLE"),
            ("SEND transaction transaction=yes id=x x", "NOT_WRITABLE"),
            (f"FORWARD normal c {held[1].handle}", "NOT_WRITABLE"),
            (f"END transaction {half} commit", "NOT_MASTER"),
            ("RECALL delay x", "NOT_MASTER"),
        ):
            said = await slave.ask(line)
            assert said.startswith(f"ERROR {reason} "), (line, said)

    fail_over(tmp_path, body)


def test_a_fail_over_keeps_the_order_and_what_is_done_stays_away(tmp_path: Path) -> None:
    """Checklist 17."""

    async def body(pair: Pair) -> None:
        pair.master.group("c", fifo=True)
        for number in range(6):
            await pair.master.done(f"SEND fifo group=g id=m{number} m{number}")
        held = await pair.master.receive(f"fifo c batch=4 invisible={BLOCK_MS} attempt=lost")
        await pair.master.done(f"ACK fifo c {held[0].handle} {held[1].handle}")
        await pair.synced()
        assert await pair.slave.receive("fifo c attempt=lost") == []
        lines = await pair.fail_over()
        assert await lines.receive("fifo c attempt=other") == []
        rest = await lines.receive(f"fifo c invisible={BLOCK_MS} attempt=lost")
        assert [one.body for one in rest] == ["m2", "m3", "m4", "m5"]
        assert {one.attempt for one in rest} == {1}
        await lines.done("ACK fifo c " + " ".join(one.handle for one in rest))
        await lines.done("SEND fifo group=g id=m6 m6")
        assert await lines.bodies("fifo c") == ["m6"]

    fail_over(tmp_path, body)


def test_a_slave_that_becomes_the_master_delivers_each_once_and_nothing_recalled(tmp_path: Path) -> None:
    """Checklist 33 and 37."""

    async def body(pair: Pair) -> None:
        pair.master.group("c")
        handles = [
            (await pair.master.done(f"SEND delay queue=0 deliver={due} id={name} {name}"))[-1]
            for name, due in (("a", NOW + 2_000), ("b", NOW + 5_000), ("c", NOW + 5_000))
        ]
        await pair.master.done(f"RECALL delay {handles[2]}")
        await pair.master.pass_ms(3_500)
        assert await pair.master.bodies("delay c wait=5000") == ["a"]
        lines = await pair.fail_over()
        assert len(lines.records("delay")) == 1
        await lines.pass_ms(5_000)
        assert await lines.bodies("delay c wait=5000") == ["b"]
        await lines.pass_ms(5_000)
        assert [one.body for one in lines.records("delay")] == [b"a", b"b"]

    fail_over(tmp_path, body)


def test_a_slave_refuses_ends_and_as_the_master_asks_and_takes_them(tmp_path: Path) -> None:
    """Checklist 51: what is asked about is seen at the engine, since this protocol has no questions."""

    async def body(pair: Pair) -> None:
        pair.master.group("c")
        half = (await pair.master.done("SEND transaction transaction=yes id=t x"))[-1]
        await pair.synced()
        said = await pair.slave.ask(f"END transaction {half} commit")
        assert said.startswith("ERROR NOT_MASTER ")
        lines = await pair.fail_over()
        asked: list[str] = []

        def ask(one: Any, half: Any) -> bool:
            asked.append(one.transaction_id)
            return True

        lines.role.transactions.ask = ask
        assert not lines.records("transaction")
        for _ in range(10):
            await lines.pass_ms(20_000)
        assert half in asked
        assert await lines.ask(f"END transaction {half} commit") == "OK"
        assert await lines.bodies("transaction c") == ["x"]
        assert len(lines.records("transaction")) == 1

    fail_over(tmp_path, body)


async def sent(lines: Lines, line: str, answer: str) -> None:
    """Send a message; until a majority is connected, again: what is refused is not stored."""

    async def taken() -> bool:
        said = await lines.ask(line)
        assert said == answer or said.startswith("ERROR HA_NOT_AVAILABLE "), said
        return said == answer

    await until_async(taken, what="a majority")


MAJORITY: Any = {"replication": "majority", "voters": ("0", "1", "2"), "slave_timeout_ms": 3_000}


async def committing(pair: Pair) -> None:
    """Wait until a majority is connected, and has a message; there is a group of which nothing is held."""
    pair.master.group("c")
    await sent(pair.master, "SEND normal queue=0 id=a a", "OK 0 0 a")
    (held,) = await pair.master.receive("normal c wait=5000")
    await pair.master.done(f"ACK normal c {held.handle}")
    await pair.synced()


def test_with_a_majority_of_the_log_answers_leave_and_messages_are_seen_once_it_has_them(
    tmp_path: Path,
) -> None:
    """Of three voters two are here."""

    async def body(pair: Pair) -> None:
        master, slave = pair.master, pair.slave
        await committing(pair)
        assert await slave.ask("PULL normal c 0 0") == "OK 1 0:a"
        pair.besides[1].hang()
        asked = "SEND normal queue=0 id=b b", "RECEIVE normal c wait=30000", "PULL normal c 0 1 wait=30000"
        waits = [master.start(line) for line in asked]
        await master.unanswered()
        pair.besides[1].go_on()
        assert await master.answer(waits[0]) == "OK 0 1 b"
        assert [one.body for one in await master.got(waits[1])] == ["b"]
        assert await master.answer(waits[2]) == "OK 2 1:b"

    fail_over(tmp_path, body, **MAJORITY)


def test_without_a_majority_of_the_log_nothing_new_is_taken_or_seen(tmp_path: Path) -> None:
    """What it has taken before is told as not known, and comes once there is a majority again."""

    async def body(pair: Pair) -> None:
        master = pair.master
        await committing(pair)
        pair.besides[1].hang()
        waits = master.start("SEND normal queue=0 id=b b"), master.start("RECEIVE normal c wait=60000")
        await master.unanswered()
        await master.pass_ms(3_000)
        said = await master.answer(waits[0])
        assert said.startswith("ERROR NOT_COMMITTED "), said
        assert await master.ask("PULL normal c 0 0") == "OK 1 0:a"
        await master.unanswered()
        pair.besides[1].go_on()
        assert [one.body for one in await master.got(waits[1])] == ["b"]
        pair.besides[1].close()
        commit = master.role.appender.commit
        await until_async(lambda: commit.near(master.clock.monotonic_ns()) < commit.copies, what="its end")
        refused = await master.ask("SEND normal queue=0 id=c c")
        assert refused.startswith("ERROR HA_NOT_AVAILABLE ") and len(master.records("normal")) == 2

    fail_over(tmp_path, body, **MAJORITY)


def test_the_end_of_a_role_answers_what_waits_for_a_majority_of_the_log(tmp_path: Path) -> None:
    async def body(pair: Pair) -> None:
        master = pair.master
        await committing(pair)
        pair.besides[1].hang()
        waits = master.start("SEND normal queue=0 id=b b"), master.start("RECEIVE normal c wait=60000")
        await master.unanswered()
        await master.stop()
        said = await master.answer(waits[0])
        assert said.startswith("ERROR NOT_COMMITTED "), said
        assert await master.got(waits[1]) == []
        assert (await master.ask("SEND normal queue=0 id=c c")).startswith("ERROR NOT_READY ")

    fail_over(tmp_path, body, **MAJORITY)


def test_during_a_switch_lines_are_refused_and_those_that_wait_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(lines: Lines) -> None:
        gate, opens = asyncio.Event(), SlaveRole.open_store

        async def open_store(role: SlaveRole) -> SlaveStore:
            await gate.wait()
            return await opens(role)

        monkeypatch.setattr(SlaveRole, "open_store", open_store)
        lines.group("c")
        await lines.done("SEND normal queue=0 id=a tag=A a")
        asked = "RECEIVE normal c wait=15000 B", "PULL normal c 0 1 wait=15000"
        waits = [lines.start(line) for line in asked]
        await lines.unanswered()
        with beside(lines.root, "master", lines.clock) as own:
            switching = asyncio.create_task(lines.broker.broker.switch("slave", 1))
            assert [await lines.answer(number) for number in waits] == ["OK", "OK 1"]
            assert lines.role is None
            for line in ("SEND normal id=x x", "PULL normal c 0 0", "RECEIVE normal c", "ACK normal c x"):
                assert (await lines.ask(line)).startswith("ERROR NOT_READY "), line
            gate.set()
            own.switch("slave")
            await switching
            assert (await lines.ask("SEND normal id=x x")).startswith("ERROR NOT_WRITABLE ")
            assert await lines.ask("PULL normal c 0 0") == "OK 1 0:a"
            await promote(lines, own)
            assert await lines.ask("SEND normal queue=0 id=b b") == "OK 0 1 b"
            assert await lines.bodies("normal c") == ["b"], "the filter of before has passed the first one"

    talk(tmp_path, body)


class Quorum(StateQuorum):
    """A majority of three whose other members know what a test says."""

    def __init__(self, what: str, newest: Callable[[], int], clock: Callable[[], float]) -> None:
        super().__init__(what, others=(2, 3), copies=2, newest=newest, own=newest, clock=clock, timeout_s=3.0)

    def others_know(self) -> None:
        """Have a majority have all."""
        self.stored(2, self.newest())


def led(lines: Lines) -> tuple[Quorum, Quorum]:
    """Have the master be a leader of three, of which nobody else has anything yet; return its majorities."""
    role, clock = lines.role, lines.clock.monotonic
    store, topics = role.consumption.lease_store, [1]
    lines.broker.context.topics.on_change.append(lambda: topics.append(1))
    leases = Quorum("leases", lambda: store.number, clock)
    metadata = Quorum("topics", lambda: len(topics), clock)
    role.takes.majority = role.settles.majority = leases
    role.sends.majority = metadata
    return leases, metadata


async def ready(lines: Lines) -> tuple[Quorum, Quorum]:
    """Have an ordered group, three messages, and a leader whose majority knows of them."""
    lines.group("c", fifo=True)
    for name in "abc":
        await lines.done(f"SEND fifo group=g id={name} {name}")
    leases, metadata = led(lines)
    leases.others_know()
    metadata.others_know()
    return leases, metadata


def test_with_a_majority_answers_leave_as_soon_as_it_has_them(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        leases, metadata = await ready(lines)
        number = lines.start(f"RECEIVE fifo c invisible={BLOCK_MS}")
        await lines.unanswered()
        leases.others_know()
        a, b, c = await lines.got(number)
        asked = [
            f"ACK fifo c {a.handle}",
            f"CHANGE fifo c {b.handle} {BLOCK_MS}",
            f"FORWARD fifo c {c.handle}",
        ]
        waits = [lines.start(line) for line in asked]
        await lines.unanswered()
        leases.others_know()
        acknowledged, changed = [await lines.answer(one) for one in waits[:2]]
        assert acknowledged == "OK" and changed.startswith("OK W1:")
        leases.others_know()
        assert await lines.answer(waits[2]) == "OK"
        lines.broker.topic("made")
        made = lines.start("SEND made id=m x")
        await lines.unanswered()
        metadata.others_know()
        assert (await lines.answer(made)).startswith("OK ")
        assert (await lines.ask("SEND made id=m x")).startswith("OK ")

    talk(tmp_path, body)


def test_a_plain_group_and_reads_wait_for_no_majority(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        await ready(lines)
        lines.group("plain")
        assert await lines.bodies("fifo plain") == ["a", "b", "c"]
        queue = (await lines.receive("fifo plain")) == [] and lines.records("fifo")[0].queue_id
        assert await lines.ask(f"PULL fifo plain {queue} 0") == "OK 3 0:a 1:b 2:c"

    talk(tmp_path, body)


@pytest.mark.parametrize("how", ["time is over", "role ends"])
def test_without_a_majority_nobody_knows_what_becomes_of_it(tmp_path: Path, how: str) -> None:
    """Whoever waits is told, when the time is over and when the role ends; and who comes then, too."""

    async def body(lines: Lines) -> None:
        leases, metadata = await ready(lines)
        number = lines.start(f"RECEIVE fifo c batch=1 invisible={BLOCK_MS}")
        await lines.unanswered()
        leases.others_know()
        (held,) = await lines.got(number)
        lines.broker.topic("made")
        waits = [
            lines.start(line)
            for line in (f"CHANGE fifo c {held.handle} 0", "RECEIVE fifo c", f"ACK fifo c {held.handle}",
                         "SEND made id=m x")
        ]  # fmt: skip
        await lines.unanswered()
        if how == "time is over":
            await lines.pass_ms(3_000)
            leases.expire()
            metadata.expire()
        else:
            leases.close("another member leads")
            metadata.close("another member leads")
        for one in waits:
            assert (await lines.answer(one)).startswith("ERROR NOT_STORED ")
        assert len(lines.records("made")) == 1, "it may be known, or not"
        if how == "role ends":
            assert (await lines.ask(f"ACK fifo c {held.handle}")).startswith("ERROR NOT_STORED ")

    talk(tmp_path, body)


def test_a_leader_that_does_not_serve_yet_holds_takes_and_refuses_settles(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        leases, _ = await ready(lines)
        number = lines.start(f"RECEIVE fifo c batch=1 invisible={BLOCK_MS}")
        await lines.unanswered()
        leases.others_know()
        (held,) = await lines.got(number)
        role = lines.role
        role.takes.serves, role.settles.not_serving = False, lambda: "too few members"
        for line in (
            f"ACK fifo c {held.handle}",
            f"CHANGE fifo c {held.handle} 0",
            f"FORWARD fifo c {held.handle}",
        ):
            assert await lines.ask(line) == "ERROR NOT_READY too few members"
        lines.group("plain")
        waits = lines.start("RECEIVE fifo plain wait=15000")
        await lines.unanswered()
        role.takes.serve()
        assert [one.body for one in await lines.got(waits)] == ["a", "b", "c"]

    talk(tmp_path, body)


def elect(root: Path, body: Callable[[Group], Awaitable[None]]) -> None:
    """Start three members that elect their leader, and run `body`."""

    async def run() -> None:
        async with elected(root, TurnedClock(NOW)) as group:
            await body(group)

    run_on_turned_loop(run())


async def serving(group: Group) -> Lines:
    """Return the front of a leader that has taken a message of an ordered group's topic."""
    leader = await group.leader()
    leader.broker.context.topics.put(leader.broker.topic("fifo", 1).with_type(MessageType.FIFO))
    leader.group("c", fifo=True)
    await sent(leader, "SEND fifo group=g id=m0 m0", "OK 0 0 m0")
    return leader


def test_an_elected_leader_and_its_successor_give_out_in_order_what_is_not_done(tmp_path: Path) -> None:
    """Checklist 17, by an election: what was answered before it holds after it."""

    async def body(group: Group) -> None:
        leader = await serving(group)
        for number in range(1, 6):
            await leader.done(f"SEND fifo group=g id=m{number} m{number}")
        held = await leader.receive(f"fifo c batch=4 invisible={BLOCK_MS} attempt=lost wait=5000")
        assert [one.body for one in held] == ["m0", "m1", "m2", "m3"]
        await leader.done(f"ACK fifo c {held[0].handle} {held[1].handle}")
        for follower in await group.followers():
            assert (await follower.ask("SEND fifo group=g id=x x")).startswith("ERROR NOT_WRITABLE ")
            assert await follower.receive("fifo c attempt=lost") == []
        await group.end(leader)
        assert (await leader.ask("SEND fifo group=g id=x x")).startswith("ERROR NOT_READY ")
        successor = await group.leader()
        assert successor is not leader
        assert await successor.receive("fifo c attempt=other") == []
        rest = await successor.receive(f"fifo c invisible={BLOCK_MS} attempt=lost wait=5000")
        assert [(one.body, one.attempt) for one in rest] == [(f"m{number}", 1) for number in range(2, 6)]
        assert await successor.ask("ACK fifo c " + " ".join(one.handle for one in rest)) == "OK"
        await sent(successor, "SEND fifo group=g id=m6 m6", "OK 0 6 m6")

    elect(tmp_path, body)


def test_an_elected_leader_without_its_majority_answers_nothing_that_may_be_lost(tmp_path: Path) -> None:
    async def body(group: Group) -> None:
        leader = await serving(group)
        (held,) = await leader.receive(f"fifo c batch=1 invisible={BLOCK_MS} wait=5000")
        others = await group.followers()
        for follower in others:
            group.own(follower).hang()
        waits = leader.start("SEND fifo group=g id=m1 m1")
        await leader.unanswered()
        for follower in others:
            await group.end(follower)
        acknowledged = leader.start(f"ACK fifo c {held.handle}")
        await leader.unanswered()
        await leader.stop()
        assert (await leader.answer(waits)).startswith("ERROR NOT_COMMITTED ")
        assert (await leader.answer(acknowledged)).startswith("ERROR NOT_STORED ")

    elect(tmp_path, body)

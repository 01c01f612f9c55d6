"""Delayed messages and transactions by the third front, over restarts, kills and a disk that is full."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.engine.lines import Lines, talk
from support.remoting.handlers import NOW
from support.waiting import eventually
from whimbrel.errors import StoreFull
from whimbrel.store.codec import RecordDraft

LATER = NOW + 3_000


async def delayed(lines: Lines, body: str, due_ms: int = LATER, words: str = "") -> str:
    """Send a message that is delivered later; return its handle."""
    *_, handle = await lines.done(" ".join(f"SEND delay deliver={due_ms} id={body} {words} {body}".split()))
    return handle


async def come(lines: Lines, rest: str = "delay c wait=5000") -> list[str]:
    """Return what has been delivered, in its order: the poll waits for the timer's next turn."""
    return await lines.bodies(rest)


def test_a_delayed_message_comes_on_time_as_it_was_sent(tmp_path: Path) -> None:
    """Checklist 21."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        await delayed(lines, "m", words="queue=2 tag=A key=k color=red")
        waits = lines.start("RECEIVE delay c wait=20000")
        await lines.pass_ms(2_999)
        await lines.unanswered()
        assert not lines.records("delay")
        await lines.pass_ms(1_201)
        (found,) = await lines.got(waits)
        assert (found.body, found.queue, found.attempt) == ("m", 2, 1)
        sent = {"UNIQ_KEY": "m", "TAGS": "A", "KEYS": "k", "color": "red", "TIMER_DELIVER_MS": str(LATER)}
        assert sent.items() <= found.properties.items()

    talk(tmp_path, body)


def test_messages_of_one_second_come_in_the_order_of_sending(tmp_path: Path) -> None:
    """Checklist 27: a thousand of them."""

    async def body(lines: Lines) -> None:
        lines.group("c", fifo=True)
        sent = [f"{number:04d}" for number in range(1_000)]
        asked = [
            lines.start(f"SEND delay queue=0 deliver={LATER + 1 + number * 7 % 900} id={name} {name}")
            for number, name in enumerate(sent)
        ]
        assert all([(await lines.answer(number)).startswith("OK 0 ") for number in asked])
        await lines.pass_ms(5_000)
        found: list[str] = []
        while len(found) < len(sent):
            got = await lines.receive("delay c wait=5000")
            found += [one.body for one in got]
            await lines.done("ACK delay c " + " ".join(one.handle for one in got))
        assert found == sent

    talk(tmp_path, body)


@pytest.mark.parametrize("how", ["restart", "kill_and_begin"])
def test_over_a_restart_each_message_comes_once(tmp_path: Path, how: str) -> None:
    """Checklist 28: one before its time, one at it, and one after it."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        again = getattr(lines, how)
        await delayed(lines, "a")
        await delayed(lines, "b", NOW + 60_000)
        await again()
        await lines.pass_ms(4_000)
        assert await come(lines) == ["a"]
        await lines.pass_ms(57_000 - 1)
        lines.clock.now_ms += 1  # the second is over, and nothing is delivered yet
        await again()
        assert await come(lines) == ["b"]
        await again()
        await lines.pass_ms(5_000)
        assert sorted(one.body for one in lines.records("delay")) == [b"a", b"b"]

    talk(tmp_path, body)


def test_a_kill_amid_the_messages_of_a_second_delivers_each_once(tmp_path: Path) -> None:
    """Checklist 28, at the time itself: some are delivered, and others are not."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        sent = [f"{number:02d}" for number in range(36)]
        for name in sent:
            await delayed(lines, name, words="queue=0")
        store, append = lines.role.store, lines.role.store.append

        def some(drafts: Sequence[RecordDraft]) -> object:
            if len(lines.records("delay")) >= 12:
                raise StoreFull("the process is about to end")
            return append(drafts)

        store.append = some
        await lines.pass_ms(4_000)
        await eventually(lambda: len(lines.records("delay")) == 12)
        await lines.kill_and_begin()
        found: list[str] = []
        while len(found) < len(sent):
            found += await come(lines)
        assert sorted(found) == sent
        assert [one.body.decode() for one in lines.records("delay")] == sent

    talk(tmp_path, body)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_broker_that_is_down_over_the_time_delivers_at_its_start(tmp_path: Path, how: str) -> None:
    """Checklist 29."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        await delayed(lines, "a")
        await getattr(lines, how)()
        assert (await lines.ask("RECEIVE delay c")).startswith("ERROR NOT_READY ")
        await lines.pass_ms(3_600_000)
        await lines.begin()
        assert await come(lines) == ["a"]
        assert len(lines.records("delay")) == 1

    talk(tmp_path, body)


def test_on_a_full_disk_they_come_later_once_and_in_order(tmp_path: Path) -> None:
    """Checklist 30."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        for name in ("a", "b", "c"):
            await delayed(lines, name, words="queue=0")
        with lines.full_disk():
            await lines.pass_ms(10_000)
            assert (await lines.ask("SEND normal id=x x")).startswith("ERROR STORE_FULL ")
            assert not lines.records("delay")
        await lines.pass_ms(60_000)
        assert await come(lines) == ["a", "b", "c"]
        assert [one.body for one in lines.records("delay")] == [b"a", b"b", b"c"]

    talk(tmp_path, body)


@pytest.mark.parametrize("how", ["restart", "kill_and_begin"])
def test_what_is_recalled_before_its_time_never_comes(tmp_path: Path, how: str) -> None:
    """Checklist 37: also after a restart."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        handle = await delayed(lines, "a")
        await delayed(lines, "b")
        assert await lines.ask(f"RECALL delay {handle}") == "OK a"
        await getattr(lines, how)()
        await lines.pass_ms(5_000)
        assert await come(lines) == ["b"]
        assert (await lines.ask(f"RECALL delay {handle}")).startswith("ERROR MALFORMED_REQUEST ")
        assert len(lines.records("delay")) == 1

    talk(tmp_path, body)


@pytest.mark.parametrize("how", ["restart", "kill_and_begin"])
def test_a_late_commit_works_also_after_a_restart(tmp_path: Path, how: str) -> None:
    """Checklist 44."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        ids = [(await lines.done(f"SEND transaction transaction=yes id={name} {name}"))[-1] for name in "ab"]
        await lines.pass_ms(600_000)
        await lines.done(f"END transaction {ids[0]} commit")
        assert await lines.bodies("transaction c") == ["a"]
        await getattr(lines, how)()
        assert await lines.ask(f"END transaction {ids[1]} commit") == "OK"
        for _ in range(2):
            await lines.done(f"END transaction {ids[0]} commit")
        assert await lines.bodies("transaction c") == ["b"]
        assert len(lines.records("transaction")) == 2

    talk(tmp_path, body)

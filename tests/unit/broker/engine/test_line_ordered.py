"""Messages in order by the third front: blocks, attempts, attempt ids, and what ends them."""

from dataclasses import replace
from pathlib import Path

from support.engine.lines import Got, Lines, talk

BLOCK_MS = 30_000


async def begin(lines: Lines, *bodies: str, group: str = "g") -> None:
    """Have an ordered group `c`, and messages of one message group."""
    lines.group("c", fifo=True)
    await send(lines, *bodies, group=group)


async def send(lines: Lines, *bodies: str, group: str = "g") -> None:
    for body in bodies:
        await lines.done(f"SEND fifo group={group} id={body} {body}")


def told(found: list[Got]) -> list[tuple[str, int]]:
    """Return bodies and attempts."""
    return [(one.body, one.attempt) for one in found]


def test_the_same_attempt_gets_the_same_and_another_one_waits_in_vain(tmp_path: Path) -> None:
    """Checklist 4."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b")
        first = await lines.receive(f"fifo c invisible={BLOCK_MS} attempt=one")
        waits = lines.start("RECEIVE fifo c wait=5000 attempt=two")
        await lines.unanswered()
        await lines.pass_ms(5_000)
        assert await lines.got(waits) == []
        again = await lines.receive(f"fifo c invisible={BLOCK_MS} attempt=one")
        assert told(again) == told(first) == [("a", 1), ("b", 1)]
        assert {one.handle for one in first}.isdisjoint(one.handle for one in again)

    talk(tmp_path, body)


def test_without_attempt_id_a_queue_is_blocked_until_all_is_done_or_visible(tmp_path: Path) -> None:
    """Checklist 5."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b")
        held = await lines.receive(f"fifo c invisible={BLOCK_MS}")
        assert await lines.receive(f"fifo c invisible={BLOCK_MS}") == []
        await lines.pass_ms(BLOCK_MS - 1)
        assert await lines.receive("fifo c") == []
        await lines.pass_ms(1)
        again = await lines.receive(f"fifo c invisible={BLOCK_MS}")
        assert told(again) == [("a", 2), ("b", 2)]
        assert await lines.ask(f"ACK fifo c {held[0].handle}") == "OK 0:INVALID_RECEIPT_HANDLE"
        await lines.done(f"ACK fifo c {again[0].handle} {again[1].handle}")
        await send(lines, "c")
        assert await lines.bodies("fifo c") == ["c"]

    talk(tmp_path, body)


def test_the_last_acknowledgement_of_a_batch_answers_a_poll(tmp_path: Path) -> None:
    """Checklist 6: with some of it the queue is still blocked, and the offset stands behind them."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b", "c")
        held = await lines.receive(f"fifo c invisible={BLOCK_MS}")
        await send(lines, "d")
        waits = lines.start("RECEIVE fifo c wait=15000")
        assert await lines.ask(f"ACK fifo c {held[0].handle} {held[1].handle}") == "OK"
        await lines.unanswered()
        queue = held[0].queue
        assert lines.role.consumption.positions.get_offset("c", "fifo", queue) == 2
        await lines.done(f"ACK fifo c {held[2].handle}")
        assert [one.body for one in await lines.got(waits)] == ["d"]

    talk(tmp_path, body)


def test_what_is_left_of_a_batch_comes_again_in_order_and_what_is_new_for_the_first_time(
    tmp_path: Path,
) -> None:
    """Checklist 7 and 8."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b", "c")
        held = await lines.receive(f"fifo c invisible={BLOCK_MS}")
        await lines.done(f"ACK fifo c {held[1].handle}")
        await send(lines, "d")
        waits = lines.start("RECEIVE fifo c wait=60000")
        await lines.pass_ms(BLOCK_MS)
        assert told(await lines.got(waits)) == [("a", 2), ("c", 2), ("d", 1)]

    talk(tmp_path, body)


def test_a_block_ends_at_the_latest_time_that_a_change_says(tmp_path: Path) -> None:
    """Checklist 9."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b")
        held = await lines.receive(f"fifo c invisible={BLOCK_MS}")
        for one, ms in zip(held, (1_000, 2_000), strict=True):
            (changed,) = await lines.done(f"CHANGE fifo c {one.handle} {ms}")
            assert changed != one.handle
            refused = await lines.ask(f"CHANGE fifo c {one.handle} {ms}")
            assert refused.startswith("ERROR INVALID_RECEIPT_HANDLE ")
        waits = lines.start("RECEIVE fifo c wait=60000")
        await lines.pass_ms(1_999)
        await lines.unanswered()
        await lines.pass_ms(1)
        assert told(await lines.got(waits)) == [("a", 2), ("b", 2)]

    talk(tmp_path, body)


def test_a_change_that_suspends_counts_no_attempt(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        await begin(lines, "a")
        (held,) = await lines.receive(f"fifo c invisible={BLOCK_MS}")
        await lines.done(f"CHANGE fifo c {held.handle} 1000 suspend")
        await lines.pass_ms(1_000)
        assert told(await lines.receive("fifo c")) == [("a", 1)]

    talk(tmp_path, body)


def test_message_groups_in_one_queue_block_together(tmp_path: Path) -> None:
    """Checklist 10."""

    async def body(lines: Lines) -> None:
        lines.broker.context.topics.put(replace(lines.broker.context.topics.get("fifo"), read_queues=1,
                                                write_queues=1))  # fmt: skip
        await begin(lines, "a")
        await send(lines, "x", group="other")
        (held,) = await lines.receive(f"fifo c batch=1 invisible={BLOCK_MS}")
        assert held.body == "a" and await lines.receive("fifo c batch=1") == []
        await lines.done(f"ACK fifo c {held.handle}")
        assert await lines.bodies("fifo c batch=1") == ["x"]

    talk(tmp_path, body)


def test_the_group_decides_about_order_and_not_the_topic(tmp_path: Path) -> None:
    """Checklist 11."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b")
        lines.group("plain")
        assert await lines.bodies("fifo plain batch=1") == ["a"]
        assert await lines.bodies("fifo plain batch=1") == ["b"]
        for name in ("x", "y"):
            await lines.done(f"SEND normal queue=0 id={name} {name}")
        assert await lines.bodies("normal c batch=1") == ["x"]
        assert await lines.receive("normal c batch=1") == []

    talk(tmp_path, body)


def test_a_message_that_is_used_up_moves_and_the_next_comes_in_the_same_answer(tmp_path: Path) -> None:
    """Checklist 12."""

    async def body(lines: Lines) -> None:
        await begin(lines, "bad", "good")
        lines.group("c", fifo=True, retry_max=1)
        for attempt in (1, 2):
            (held,) = await lines.receive(f"fifo c batch=1 invisible={BLOCK_MS}")
            assert told([held]) == [("bad", attempt)]
            await lines.done(f"CHANGE fifo c {held.handle} 0")
        waits = lines.start("RECEIVE fifo c batch=1 wait=15000")
        assert told(await lines.got(waits)) == [("good", 1)]
        assert [one.body for one in lines.records("%DLQ%c")] == [b"bad"]

    talk(tmp_path, body)


def test_a_kill_keeps_blocks_attempts_and_attempt_ids(tmp_path: Path) -> None:
    """Checklist 16."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b", "c")
        for one in await lines.receive("fifo c attempt=zero"):
            await lines.done(f"CHANGE fifo c {one.handle} 0")
        held = await lines.receive(f"fifo c invisible={BLOCK_MS} attempt=one")
        assert [one.attempt for one in held] == [2, 2, 2]
        await lines.done(f"ACK fifo c {held[0].handle}")
        await lines.kill_and_begin()
        assert await lines.receive("fifo c attempt=two") == []
        again = await lines.receive(f"fifo c invisible={BLOCK_MS} attempt=one")
        assert told(again) == [("b", 2), ("c", 2)]
        assert await lines.ask(f"ACK fifo c {again[0].handle} {again[1].handle}") == "OK"

    talk(tmp_path, body)


def test_what_a_client_held_that_has_gone_is_free_in_a_second(tmp_path: Path) -> None:
    """Checklist 18: its leases were renewed while it lived."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a")
        clients = lines.broker.context.clients
        clients.seen("c1", {}, lines.clock.monotonic(), group="c")
        assert await lines.bodies("fifo c client=c1") == ["a"]
        waits = lines.start("RECEIVE fifo c wait=300000")
        await lines.pass_ms(100_000)
        await lines.unanswered()
        clients.left("c1")
        lines.broker.broker.release_client("c1", "c")
        await lines.pass_ms(1_000)
        assert told(await lines.got(waits)) == [("a", 2)]

    talk(tmp_path, body)


def test_a_reset_ends_the_block(tmp_path: Path) -> None:
    """Checklist 19."""

    async def body(lines: Lines) -> None:
        await begin(lines, "a", "b")
        held = await lines.receive(f"fifo c invisible={BLOCK_MS}")
        waits = lines.start("RECEIVE fifo c wait=15000")
        lines.role.consumption.positions.reset_offset("c", "fifo", held[0].queue, 1)
        assert [one.body for one in await lines.got(waits)] == ["b"]
        assert await lines.ask(f"ACK fifo c {held[1].handle}") == "OK 0:INVALID_RECEIPT_HANDLE"

    talk(tmp_path, body)

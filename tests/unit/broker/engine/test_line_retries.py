"""What comes again, and what no longer does, by the third front: retries, dead letters, forwards, filters."""

from pathlib import Path

from support.engine.lines import Got, Lines, talk
from whimbrel.model.dead_letter import attempts_of
from whimbrel.model.retry import Customized

BLOCK_MS, SHORT_MS = 30_000, 10_000


async def fill(lines: Lines, *words: str, topic: str = "normal") -> None:
    """Have a group `c`, and messages in queue 0; each is its words, and its number as id."""
    lines.group("c")
    for number, word in enumerate(words):
        await lines.done(f"SEND {topic} queue=0 id=m{number} {word}")


def told(found: list[Got]) -> list[tuple[str, int]]:
    """Return bodies and attempts."""
    return [(one.body, one.attempt) for one in found]


def letters(lines: Lines) -> list[bytes]:
    """Return the dead letters of the group."""
    return [one.body for one in lines.records("%DLQ%c")]


async def use_up(lines: Lines) -> list[str]:
    """Have the group, which may have two deliveries, fail twice at a message; return what comes then."""
    lines.group("c", retry_max=1)
    for attempt in (1, 2):
        (held,) = await lines.receive(f"normal c batch=1 invisible={SHORT_MS}")
        assert held.attempt == attempt
        await lines.pass_ms(SHORT_MS)
    return await lines.bodies("normal c batch=1 invisible=3600000")


def test_what_is_not_acknowledged_comes_again_at_its_time_and_wakes_a_poll(tmp_path: Path) -> None:
    """Checklist 54."""

    async def body(lines: Lines) -> None:
        await fill(lines, "a", "b")
        held = await lines.receive(f"normal c invisible={BLOCK_MS}")
        assert await lines.ask(f"ACK normal c {held[1].handle}") == "OK"
        waits = lines.start("RECEIVE normal c wait=60000")
        await lines.pass_ms(BLOCK_MS - 1)
        await lines.unanswered()
        await lines.pass_ms(1)
        (again,) = await lines.got(waits)
        assert told([again]) == [("a", 2)] and again.handle != held[0].handle

    talk(tmp_path, body)


def test_attempts_used_up_make_a_dead_letter_that_says_where_it_is_from_and_can_be_consumed(
    tmp_path: Path,
) -> None:
    """Checklist 56 to 58."""

    async def body(lines: Lines) -> None:
        await fill(lines, "tag=A key=k color=red bad")
        assert await use_up(lines) == []
        topic = lines.broker.context.topics.get("%DLQ%c")
        assert (topic.read_queues, topic.write_queues, topic.permission) == (1, 1, 6)
        (letter,) = lines.records("%DLQ%c")
        properties = letter.properties
        kept = {"UNIQ_KEY": "m0", "TAGS": "A", "KEYS": "k", "color": "red"}
        assert letter.body == b"bad" and kept.items() <= properties.items()
        assert (properties["DLQ_ORIGIN_TOPIC"], properties["DLQ_ORIGIN_MESSAGE_ID"]) == ("normal", "m0")
        assert properties["RETRY_TOPIC"] == "normal" and len(properties["ORIGIN_MESSAGE_ID"]) == 32
        assert attempts_of(properties, letter.reconsume_times, None) == 2
        lines.group("other")
        (found,) = await lines.receive("%DLQ%c other A")
        assert (found.body, found.attempt) == ("bad", 1) and kept.items() <= found.properties.items()

    talk(tmp_path, body)


def test_on_a_full_disk_a_dead_letter_is_neither_lost_nor_delivered_and_moved_later(tmp_path: Path) -> None:
    """Checklist 59."""

    async def body(lines: Lines) -> None:
        await fill(lines, "bad", "good")
        with lines.full_disk():
            assert await use_up(lines) == ["good"]
            await lines.pass_ms(60_000)
            assert await lines.receive("normal c") == [] and not letters(lines)
        waits = lines.start("RECEIVE normal c wait=60000")
        await lines.pass_ms(60_000)
        assert await lines.got(waits) == []
        assert letters(lines) == [b"bad"]

    talk(tmp_path, body)


def test_a_lease_renewed_for_three_hours_ends_and_counts(tmp_path: Path) -> None:
    """Checklist 60: it comes again after the group's wait."""

    async def body(lines: Lines) -> None:
        await fill(lines, "a")
        group = lines.group("c").with_retry_policy(Customized((70_000, 200_000)))
        lines.role.creation.groups.put(group)
        lines.broker.context.clients.seen("c1", {}, lines.clock.monotonic(), group="c")
        assert told(await lines.receive("normal c client=c1")) == [("a", 1)]
        client = lines.broker.context.clients.get("c1")
        for _ in range(3 * 60):
            client.last_seen = lines.clock.monotonic()
            await lines.pass_ms(60_000)
        waits = lines.start("RECEIVE normal c wait=100000")
        await lines.pass_ms(69_000)
        await lines.unanswered()
        await lines.pass_ms(1_000)
        assert told(await lines.got(waits)) == [("a", 2)]

    talk(tmp_path, body)


def test_filters_apply_to_what_comes_again(tmp_path: Path) -> None:
    """Checklist 61: what does not match a later filter is passed."""

    async def body(lines: Lines) -> None:
        await fill(lines, "tag=A a", "tag=B b", "tag=A n=7 c")
        assert await lines.bodies(f"normal c invisible={SHORT_MS} A || B") == ["a", "b", "c"]
        await lines.pass_ms(SHORT_MS)
        assert told(await lines.receive(f"normal c invisible={SHORT_MS} by=sql (n = 7)")) == [("c", 2)]
        await lines.pass_ms(SHORT_MS)
        assert told(await lines.receive("normal c")) == [("c", 3)]

    talk(tmp_path, body)


def test_a_forward_leaves_one_copy_at_most_and_of_the_right_record(tmp_path: Path) -> None:
    """Checklist 14 and 15: repeated, by the handle of a change, late, and after a reset."""

    async def body(lines: Lines) -> None:
        await fill(lines, "a", "b", "c", "d")
        a, b, c, d = await lines.receive(f"normal c invisible={BLOCK_MS}")
        for _ in range(2):
            assert await lines.ask(f"FORWARD normal c {a.handle}") == "OK"
        (changed,) = await lines.done(f"CHANGE normal c {b.handle} {2 * BLOCK_MS}")
        for handle in (changed, b.handle, changed):
            assert await lines.ask(f"FORWARD normal c {handle}") == "OK"
        assert letters(lines) == [b"a", b"b"]
        await lines.pass_ms(BLOCK_MS)
        again = await lines.receive(f"normal c invisible={BLOCK_MS}")
        assert told(again) == [("c", 2), ("d", 2)]
        for handle in (c.handle, again[0].handle):
            assert await lines.ask(f"FORWARD normal c {handle}") == "OK"
        assert letters(lines) == [b"a", b"b", b"c"]
        lines.role.consumption.positions.reset_offset("c", "normal", 0, 0)
        assert await lines.ask(f"FORWARD normal c {d.handle}") == "OK"
        assert letters(lines) == [b"a", b"b", b"c"]
        for line in ("FORWARD normal c junk", f"FORWARD normal other {a.handle}"):
            assert (await lines.ask(line)).startswith("ERROR INVALID_RECEIPT_HANDLE ")

    talk(tmp_path, body)


def test_after_a_kill_a_forward_finds_its_copy(tmp_path: Path) -> None:
    """Checklist 14."""

    async def body(lines: Lines) -> None:
        await fill(lines, "a")
        (held,) = await lines.receive(f"normal c invisible={BLOCK_MS}")
        await lines.done(f"FORWARD normal c {held.handle}")
        await lines.kill_and_begin()
        assert await lines.ask(f"FORWARD normal c {held.handle}") == "OK"
        assert letters(lines) == [b"a"]

    talk(tmp_path, body)


def test_the_greatest_priority_comes_first_and_0_is_one(tmp_path: Path) -> None:
    """Checklist 77 and 78."""

    async def body(lines: Lines) -> None:
        lines.group("c")
        for priority in (0, 3, 1, 9, 2):
            await lines.done(f"SEND priority priority={priority} id=m{priority} p{priority}")
        found = await lines.receive("priority c")
        assert [one.queue for one in found] == [3, 3, 2, 1, 0]
        assert [one.body for one in found] == ["p3", "p9", "p2", "p1", "p0"]
        assert [one.properties["_SYS_MSG_PRIORITY_"] for one in found] == ["3", "9", "2", "1", "0"]

    talk(tmp_path, body)


def test_what_is_wrong_with_handles_is_told_one_by_one(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        await fill(lines, "a", "b")
        held = await lines.receive(f"normal c invisible={BLOCK_MS}")
        said = await lines.ask(f"ACK normal c junk {held[0].handle} junk")
        assert said == "OK 0:INVALID_RECEIPT_HANDLE 2:INVALID_RECEIPT_HANDLE"
        assert await lines.ask(f"ACK normal c {held[0].handle}") == "OK"
        for line, reason in (
            ("ACK normal c", "MALFORMED_REQUEST"),
            (f"CHANGE normal c {held[0].handle} 1000", "INVALID_RECEIPT_HANDLE"),
            (f"CHANGE normal c {held[1].handle} -1", "ILLEGAL_INVISIBLE_TIME"),
            ("RECEIVE none c", "TOPIC_NOT_FOUND"),
            ("RECEIVE RMQ_SYS_TRANS_HALF_TOPIC c", "ILLEGAL_TOPIC"),
            ("RECEIVE normal a/b", "ILLEGAL_CONSUMER_GROUP"),
            ("RECEIVE normal c invisible=1", "ILLEGAL_INVISIBLE_TIME"),
            ("RECEIVE normal c ||", "ILLEGAL_FILTER_EXPRESSION"),
        ):
            assert (await lines.ask(line)).startswith(f"ERROR {reason} "), line

    talk(tmp_path, body)

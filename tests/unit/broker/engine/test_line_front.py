"""The engine by a third front (`support/engine/line_front.py`), a line protocol over a socket.

What clients see of messages does not depend on the protocol that they come by, so what `docs/checklist.md`
says of it holds here, too: sends, pulls, filters and types in this file, `test_line_ordered.py`,
`test_line_delayed.py` and `test_line_retries.py` for what their names say, and `test_line_roles.py` behind a
master, a slave, a switch, and a leader with and without a majority.
"""

import re
from pathlib import Path

import pytest

from checklist import docstrings, numbers_in
from support.engine import line_front
from support.engine.lines import Lines, talk
from support.remoting.handlers import NOW
from whimbrel.model.recall import RecallHandle
from whimbrel.model.topic import GroupConfig, MessageType


def test_a_message_is_stored_where_the_answer_says(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        said = await lines.ask("SEND normal queue=2 id=m1 tag=A key=k1+k2 color=red hello world")
        assert said == "OK 2 0 m1"
        properties = {
            "UNIQ_KEY": "m1",
            "TAGS": "A",
            "KEYS": "k1 k2",
            "color": "red",
            "CLUSTER": "DefaultCluster",
        }
        assert lines.stored("normal") == [(2, b"hello world", properties)]

    talk(tmp_path, body)


def test_an_answer_waits_for_the_disk(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        numbers = [lines.start(f"SEND normal id=m{n} x") for n in range(20)]
        said = [await lines.answer(number) for number in numbers]
        assert all(one.startswith("OK ") for one in said)
        assert lines.broker.role.store.flushed >= lines.broker.role.store.written

    talk(tmp_path, body, flush="sync")


def test_a_group_has_one_queue_with_offsets_that_follow_each_other(tmp_path: Path) -> None:
    """Checklist 2: and its name in each record."""

    async def body(lines: Lines) -> None:
        said = [await lines.ask(f"SEND fifo group=order-1 queue=3 id=m{n} x") for n in range(4)]
        queues = {one.split()[1] for one in said}
        assert [one.split()[2] for one in said] == ["0", "1", "2", "3"] and len(queues) == 1
        assert [one[2]["__SHARDINGKEY"] for one in lines.stored("fifo")] == ["order-1"] * 4

    talk(tmp_path, body)


def test_a_time_that_is_past_is_no_delay(tmp_path: Path) -> None:
    """Checklist 24: and there is no handle."""

    async def body(lines: Lines) -> None:
        for time_ms in (0, NOW - 1, NOW):
            said = await lines.ask(f"SEND delay deliver={time_ms} id=m x")
            assert len(said.split()) == 4
        assert len(lines.stored("delay")) == 3 and not lines.stored("rmq_sys_wheel_timer")

    talk(tmp_path, body)


def test_a_time_is_at_most_a_day_ahead(tmp_path: Path) -> None:
    """Checklist 25."""

    async def body(lines: Lines) -> None:
        day = 24 * 3_600_000
        assert (await lines.ask(f"SEND delay deliver={NOW + day} id=m x")).startswith("OK ")
        assert (await lines.ask(f"SEND delay deliver={NOW + day + 1} id=m x")).startswith(
            "ERROR ILLEGAL_DELIVERY_TIME "
        )

    talk(tmp_path, body)


def test_a_handle_names_what_waits_and_recalls_it(tmp_path: Path) -> None:
    """Checklist 36 and 38."""

    async def body(lines: Lines) -> None:
        said = await lines.ask(f"SEND delay deliver={NOW + 60_000} id=m1 x")
        *_, id_, handle = said.split()
        named = RecallHandle.decode(handle)
        assert (id_, named.topic, named.broker_name, named.message_id) == ("m1", "delay", "broker-a", "m1")
        for _ in range(2):
            assert await lines.ask(f"RECALL delay {handle}") == "OK m1"
        assert (await lines.ask(f"RECALL mixed {handle}")).startswith("ERROR MALFORMED_REQUEST ")
        assert (await lines.ask("RECALL delay nothing")).startswith("ERROR MALFORMED_REQUEST ")
        unknown = named._replace(message_id="none").encode()
        assert await lines.ask(f"RECALL delay {unknown}") == "OK none"
        other = RecallHandle(topic="delay", broker_name="b", time_ms=NOW, message_id="m1").encode()
        assert await lines.ask(f"RECALL delay {other}") == "ELSEWHERE b -1"
        await lines.pass_ms(62_000)
        assert (await lines.ask(f"RECALL delay {handle}")).startswith("ERROR MALFORMED_REQUEST ")

    talk(tmp_path, body)


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_half_is_seen_once_it_is_committed_and_never_otherwise(tmp_path: Path, how: str) -> None:
    """Checklist 40 to 43."""

    async def body(lines: Lines) -> None:
        said = await lines.ask("SEND transaction transaction=yes id=m1 x")
        *_, id_, handle = said.split()
        assert (id_, handle) == ("m1", "m1") and not lines.stored("transaction")
        for _ in range(2):
            assert await lines.ask(f"END transaction {handle} {how}") == "OK"
        other = "rollback" if how == "commit" else "commit"
        refused = await lines.ask(f"END transaction {handle} {other}")
        assert refused.startswith("ERROR INVALID_TRANSACTION_ID ")
        assert [one[1] for one in lines.stored("transaction")] == ([b"x"] if how == "commit" else [])

    talk(tmp_path, body)


def test_what_no_transaction_may_be(tmp_path: Path) -> None:
    """Checklist 49 and 50: with a time of delivery refused, with a message group taken and delivered with it;
    several of them are refused, and nothing is stored."""

    async def body(lines: Lines) -> None:
        said = await lines.ask(f"SEND mixed transaction=yes deliver={NOW + 1000} id=m x")
        assert said.startswith("ERROR MESSAGE_PROPERTY_CONFLICT_WITH_TYPE ")
        end = lines.role.store.written
        said = await lines.ask("SEND transaction transaction=yes id=m a && b")
        assert said.startswith("ERROR MALFORMED_REQUEST ") and lines.role.store.written == end
        *_, handle = await lines.done("SEND transaction transaction=yes group=order-1 id=m1 x")
        await lines.done(f"END transaction {handle} commit")
        lines.group("g")
        (found,) = await lines.receive("transaction g")
        assert (found.body, found.properties["__SHARDINGKEY"]) == ("x", "order-1")

    talk(tmp_path, body)


def test_messages_of_a_line_go_to_one_queue_together(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        lines.group("g")
        assert await lines.ask("SEND normal queue=1 id=m a && b && c") == "OK 1 0 m 1 1 m 1 2 m"
        assert [(queue, one) for queue, one, _ in lines.stored("normal")] == [(1, b"a"), (1, b"b"), (1, b"c")]
        assert await lines.ask("PULL normal g 1 0") == "OK 3 0:a 1:b 2:c"

    talk(tmp_path, body)


WORDS = {
    MessageType.NORMAL: "", MessageType.FIFO: "group=g", MessageType.DELAY: f"deliver={NOW + 1000}",
    MessageType.TRANSACTION: "transaction=yes", MessageType.PRIORITY: "priority=0",
    MessageType.LITE: "lite=l",
}  # fmt: skip


def test_a_topic_takes_messages_of_its_type(tmp_path: Path) -> None:
    """Checklist 76 and 79: cell by cell."""

    async def body(lines: Lines) -> None:
        for takes in MessageType:
            for kind, words in WORDS.items():
                said = await lines.ask(" ".join(f"SEND {takes.lower()} {words} id=m x".split()))
                taken = kind is takes or (takes is MessageType.MIXED and kind is not MessageType.PRIORITY)
                taken = taken and kind is not MessageType.LITE
                start = "OK " if taken else "ERROR MESSAGE_PROPERTY_CONFLICT_WITH_TYPE "
                assert said.startswith(start), (takes, kind, said)

    talk(tmp_path, body)


def test_priorities_choose_the_queue(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        said = [await lines.ask(f"SEND priority priority={one} id=m x") for one in (0, 2, 3, 9)]
        assert [one.split()[1] for one in said] == ["0", "2", "3", "3"]
        assert (await lines.ask("SEND priority priority=-1 id=m x")).startswith("ERROR MALFORMED_REQUEST ")

    talk(tmp_path, body)


async def fill(lines: Lines, *words: str) -> None:
    """Send messages to queue 0 of a topic; each is its words."""
    lines.broker.role.creation.groups.put(GroupConfig(name="g"))
    for number, word in enumerate(words):
        assert (await lines.ask(f"SEND normal queue=0 id=m{number} {word}")).startswith("OK 0 ")


def test_a_queue_is_read_from_an_offset_on(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        await fill(lines, "tag=A x", "tag=B y", "tag=A z")
        assert await lines.ask("PULL normal g 0 1") == "OK 3 1:y 2:z"
        assert await lines.ask("PULL normal g 0 0 batch=1") == "OK 1 0:x"
        assert await lines.ask("PULL normal g 0 0 A") == "OK 3 0:x 2:z"
        assert await lines.ask("PULL normal g 0 0 A || B") == "OK 3 0:x 1:y 2:z"
        for line, reason in (
            ("PULL none g 0 0", "TOPIC_NOT_FOUND"),
            ("PULL normal g 4 0", "QUEUE_NOT_FOUND"),
            ("PULL normal a/b 0 0", "ILLEGAL_CONSUMER_GROUP"),
            ("PULL normal g 0 4", "ILLEGAL_OFFSET"),
            ("PULL normal g 0 0 ||", "ILLEGAL_FILTER_EXPRESSION"),
        ):
            assert (await lines.ask(line)).startswith(f"ERROR {reason} "), line

    talk(tmp_path, body)


def test_a_read_waits_for_its_queue_and_holds_up_nothing(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        await fill(lines, "tag=A x")
        waits = [lines.start(f"PULL normal g 0 1 wait=15000 {tag}") for tag in ("", "B")]
        ends = lines.start("PULL normal g 1 0 wait=1")
        assert await lines.ask("SEND normal queue=1 id=m tag=A y") == "OK 1 0 m"
        assert await lines.answer(ends) in ("OK 0", "OK 1 0:y")
        assert await lines.ask("SEND normal queue=0 id=m tag=A y") == "OK 0 1 m"
        assert await lines.answer(waits[0]) == "OK 2 1:y"
        assert await lines.ask("SEND normal queue=0 id=m tag=B z") == "OK 0 2 m"
        assert await lines.answer(waits[1]) == "OK 3 2:z"

    talk(tmp_path, body)


def test_a_read_that_waits_ends_with_the_role(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        await fill(lines, "x")
        waits = lines.start("PULL normal g 0 1 wait=15000")
        await lines.ask("PULL normal g 0 0")
        lines.broker.role.polls.close("another member leads")
        assert await lines.answer(waits) == "OK 1"

    talk(tmp_path, body)


SQL = (
    # Checklist 66: text is compared as a number of the literal's type.
    ("n=1.5", "n > 1", False), ("n=1.5", "n > 1.0", True), ("n=7", "n = 7", True), ("n=x", "n = 7", False),
    # 67: a missing left side leaves an inequality open, a missing right one does not.
    ("a=1", "none <> 1 OR TRUE", True), ("a=1", "a <> 2", True),
    # 68: NOT binds tightest.
    ("a=7", "NOT a = 5", False), ("a=7", "NOT (a = 5)", True),
    # 69: NOT CONTAINS of what is missing is false.
    ("a=1", "none CONTAINS 'x'", False), ("a=1", "none NOT CONTAINS 'x'", False),
    # 70: an error left of OR is no match; right of what is true it does not matter.
    ("a=x", "a > 1 OR TRUE", False), ("a=x", "TRUE OR a > 1", True),
    # 73: stored properties can be named.
    ("tag=A", "TAGS = 'A'", True), ("key=k", "KEYS = 'k'", True),
)  # fmt: skip


def test_sql_decides_by_properties(tmp_path: Path) -> None:
    """Checklist 66 to 71, 73 and 74."""

    async def body(lines: Lines) -> None:
        await fill(lines, *(f"{words} x" for words, _, _ in SQL))
        for number, (words, text, matches) in enumerate(SQL):
            said = await lines.ask(f"PULL normal g 0 {number} batch=1 by=sql ({text})")
            assert (said == f"OK {number + 1} {number}:x") is matches, (words, text, said)
        for text in (
            "a >",
            "a = ",
            "a BETWEEN 1",
            "(" * 5_000,
            "a = " + "1" * 20_000,
            "NOT " * 9_000 + "TRUE",
        ):
            assert (await lines.ask(f"PULL normal g 0 0 by=sql {text}")).startswith(
                "ERROR ILLEGAL_FILTER_EXPRESSION "
            ), text[:20]
        assert (await lines.ask("PULL normal g 0 0 batch=1")).endswith(" 0:x")

    talk(tmp_path, body)


def test_what_does_not_match_is_passed(tmp_path: Path) -> None:
    """Checklist 75: where to go on is behind it, and a poll goes on past it."""

    async def body(lines: Lines) -> None:
        await fill(lines, "tag=A x", "tag=A y")
        assert await lines.ask("PULL normal g 0 0 B") == "OK 2"
        waits = lines.start("PULL normal g 0 0 wait=15000 B")
        assert await lines.ask("SEND normal queue=0 id=m tag=A z") == "OK 0 2 m"
        assert await lines.ask("SEND normal queue=0 id=m tag=B z") == "OK 0 3 m"
        assert await lines.answer(waits) == "OK 4 3:z"

    talk(tmp_path, body)


def test_what_is_refused_is_refused_for_the_same_reason(tmp_path: Path) -> None:
    """No check has a line of its own in the front."""

    async def body(lines: Lines) -> None:
        for line, reason in (
            ("SEND none id=m x", "TOPIC_NOT_FOUND"),
            ("SEND TBW102 id=m x", "ILLEGAL_TOPIC"),
            ("SEND normal id=m", "MESSAGE_BODY_EMPTY"),
            ("SEND normal x", "ILLEGAL_MESSAGE_ID"),
            ("SEND normal id=m tag=a|b x", "ILLEGAL_MESSAGE_TAG"),
            ("SEND normal id=m REPLAYED_FROM=x x", "ILLEGAL_MESSAGE_PROPERTY_KEY"),
            ("SEND normal id=m queue=4 x", "QUEUE_NOT_FOUND"),
            ("END transaction none commit", "INVALID_TRANSACTION_ID"),
        ):
            assert (await lines.ask(line)).startswith(f"ERROR {reason} "), line
        lines.broker.role.appender.refusal = "another member leads"
        assert await lines.ask("SEND normal id=m x") == "ERROR NOT_WRITABLE another member leads"
        lines.broker.role.appender.refusal = ""

    talk(tmp_path, body)


def test_a_line_in_pieces_is_one(tmp_path: Path) -> None:
    async def body(lines: Lines) -> None:
        lines.asked = 1
        for byte in b"SEND normal id=m1 x\n":
            lines.writer.write(bytes((byte,)))
            await lines.writer.drain()
        assert (await lines.answer(1)).endswith(" 0 m1")

    talk(tmp_path, body)


FRONT = Path(line_front.__file__)
LINES_MAX, STATEMENTS = 120, 80
OTHER_FRONTS = ("whimbrel.broker.api", "whimbrel.broker.remoting", "whimbrel.broker.lane", "whimbrel.rpc")


def test_a_front_has_few_lines_and_knows_no_other() -> None:
    text = FRONT.read_text(encoding="utf-8")
    assert text.count("\n") <= LINES_MAX
    assert not [name for name in OTHER_FRONTS if f"{name}." in text] and "whimbrel.pb" not in text


def test_the_page_names_each_statement_and_those_that_run_here() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "third-front.md").read_text(encoding="utf-8")
    stated = dict(
        re.findall(r"^\| (\d+) \| .* \| (run|not yet: .+|out of reach: .+) \|$", page, re.MULTILINE)
    )
    assert list(map(int, stated)) == list(range(1, STATEMENTS + 1))
    said: set[int] = set()
    for file in Path(__file__).parent.glob("test_line_*.py"):
        for _, text in docstrings(file):
            said |= numbers_in(text)
    assert said == {int(number) for number, state in stated.items() if state == "run"}

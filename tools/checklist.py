"""The statements that every kind of message is held to, and which tests show each: docs/checklist.md.

    python tools/checklist.py           # prints the page
    make checklist                      # writes it

A test says what it shows where a person reads it, at the begin of its docstring: `Checklist 21 and 25:`,
`Checklist 40, 41 and 43.` or `Checklist 54 to 58:`. Nothing else is kept by hand but the statements, in
short. Numbers of other papers (`10.3`, chapter 9) do not count.
"""

import ast
import functools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

__all__ = ["CHAPTERS", "PAGE", "STATEMENTS", "TESTS", "numbers_in", "page", "row", "shown", "shown_by"]

TESTS = Path(__file__).resolve().parents[1] / "tests"
PAGE = TESTS.parent / "docs" / "checklist.md"

LIST = re.compile(r"Checklist ((?:\d+(?!\.?\d)(?:, and | and | to |, )?)+)")
RANGE = re.compile(r"(\d+)(?: to (\d+))?")

CHAPTERS: dict[str, tuple[str, ...]] = {
    "Ordered": (
        "groups `order-1`, `a`, `g4` go to queues 3, 0, 1 of four, from every SDK",
        "a group's messages have consecutive offsets in one queue, and its name in each record",
        "two brokers, producers in Java, Python and one that chooses freely: one group, one queue",
        "another attempt id waits in vain; the same one gets the same messages, as the same attempts",
        "without attempt id: blocked until acknowledged or visible again",
        "some of a batch acknowledged: still blocked, the offset behind them; all: a parked poll is answered",
        "what is left of a batch when its time is over comes again in order, as attempt 2",
        "a message that is new in a batch that comes again is attempt 1",
        "a change of the invisible time ends the block at that time, at the latest one of several",
        "groups in one queue block together",
        "ordered groups get plain topics in order; plain groups are not blocked on ordered topics",
        "attempts used up: the message moves, and the next comes in the same answer",
        "a push consumer that always fails: one copy, and the next message is consumed",
        "a forward that is repeated, late, or after a reset leaves one copy at most",
        "a forward with the handle of a change copies the right record",
        "kill -9 keeps blocks, attempts and attempt ids",
        "fail-over to a slave keeps the order, and what was acknowledged stays away",
        "what a client held that has gone is free in about a second",
        "a reset ends the block",
        "two consumers, ten groups: never two batches of one queue under way",
    ),
    "Delayed": (
        "3 s later: not before, at most 1.2 s after; with type and time as sent",
        "the record that waits: topic, queue, `TIMER_OUT_MS`, also on a whole second",
        "the record that is delivered: its properties, and where it was born",
        "a time that is past, or 0: at once, without a handle, and it never waits",
        "up to 24 h ahead is taken, and no more",
        "units and slots of the timer files byte for byte",
        "a thousand for one second come in the order of sending",
        "a restart before and after the time, and kill -9 at the time: once",
        "a broker that is down over the time delivers at its start",
        "a disk that is full at the time: later, once, in order",
        "a real 5.3.3 delivers what waits in our store once, and what we delivered not again",
        "we deliver once what waits in the store of a real 5.3.3",
        "a slave that becomes the master delivers each once",
        "who waits longer than the roll window is stored again on the way, and comes once",
        "the metric of messages that wait rises and falls",
    ),
    "Recall": (
        "the handle's text; none for what does not wait",
        "before its time: never delivered, also after a restart and a fail-over",
        "again, or of an unknown id: OK; too late, garbage, another topic: refused",
        "from a nameserver, and from any broker",
    ),
    "Transactions": (
        "a half as RocketMQ writes it, which nobody sees or counts",
        "committed: delivered once, as RocketMQ writes it",
        "rolled back: never; the op says so",
        "the same end again is fine, and another one refused",
        "a late commit, and one after a restart, works",
        "left open: its producer is asked in time, and the answer counts",
        "its producer is gone: another one of the topic is asked",
        "silence: given up after the rounds, and kept",
        "no question within the recovery duration, and a later commit counts",
        "with a time of delivery refused; with a message group taken, and delivered with it",
        "a batch is refused, and nothing stored",
        "a slave refuses; after fail-over the check decides",
        "a real 5.3.3 asks about what we left open, and nothing else",
        "commit and answer of a check at once: one delivery",
    ),
    "Retry and dead letters": (
        "not acknowledged: comes again at its time, and wakes a parked poll",
        "settings carry the group's policy, in the kind that each SDK reads",
        "attempts used up: the dead-letter topic of the group, as RocketMQ makes it",
        "a dead letter keeps what was sent, and says where it comes from",
        "the dead-letter topic can be consumed",
        "a disk that is full: neither lost nor delivered, moved later",
        "renewed for three hours: the group's wait, and the next attempt",
        "filters apply to what comes again",
        "bookkeeping is no user property",
        "what a group of a 5.3.3 store held comes again",
        "what waits in a 5.3.3 store's retry topics comes as of its topic, attempts counted",
    ),
    "SQL filters": (
        "each operator against RocketMQ's own class",
        "text is compared as a number of the literal's type",
        "a missing left side leaves an inequality open, a missing right one does not",
        "`NOT` binds tightest",
        "`NOT CONTAINS` of what is missing is false",
        "an error left of `OR` is no match; right of what is true it does not matter",
        "what is no expression is refused",
        "10,000 generated cases as RocketMQ's own class",
        "stored properties can be named",
        "long and deep texts are refused, and crash nothing",
        "what does not match counts as consumed, and the poll goes on",
    ),
    "Types, priorities, log": (
        "which topic takes which type of message, cell by cell",
        "priorities choose the queue, and the greatest comes first",
        "priority 0 is delivered as one",
        "lite topics are refused, and nothing hangs",
        "a record of each kind reaches slaves of RocketMQ 4.9.3 and 5.3.3 byte by byte",
    ),
}
STATEMENTS = tuple(each for statements in CHAPTERS.values() for each in statements)

HEAD = """# Checklist

What every kind of message is held to, in 80 statements, and the tests that show each. Written by
`make checklist` from what the tests say of themselves; `tests/unit/test_checklist.py` fails where a statement
has no test, or this page is not what the tests say. Tests below `interop` need Java and run against real
RocketMQ brokers.

Paths are below `tests/`.
"""


def numbers_in(text: str) -> set[int]:
    """Return the numbers that a docstring names: single ones and ranges."""
    found: set[int] = set()
    for named in LIST.findall(text):
        for first, last in RANGE.findall(named):
            found.update(range(int(first), int(last or first) + 1))
    return found


def shown() -> dict[int, list[str]]:
    """Return which tests show a statement: number to `file::function`, in the order of files."""
    return shown_by(lambda name, text: numbers_in(text))


def shown_by(numbers: Callable[[str, str], Iterable[int]]) -> dict[int, list[str]]:
    """Do the same by what `numbers` finds in a test's name and its docstring."""
    tests: dict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        if "golden" in path.relative_to(TESTS).parts or path.name == "test_checklist.py":
            continue
        for name, text in docstrings(path):
            for number in sorted(numbers(name, text)):
                tests[number].append(f"{path.relative_to(TESTS).as_posix()}::{name}")
    return tests


@functools.cache
def docstrings(path: Path) -> tuple[tuple[str, str], ...]:
    """Return the tests of a file, each with its docstring."""
    return tuple(
        (node.name, " ".join((ast.get_docstring(node) or "").split()))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def row(number: int, statement: str, tests: Mapping[int, list[str]]) -> str:
    """Return a row of a page's table."""
    places = "<br>".join(f"`{name}`" for name in tests.get(number, ())) or "**none**"
    return f"| {number} | {statement} | {places} |"


def page() -> str:
    """Return docs/checklist.md."""
    tests = shown()
    lines = [HEAD]
    number = 0
    for chapter, statements in CHAPTERS.items():
        lines += [f"## {chapter}", "", "| | Statement | Shown by |", "|---|---|---|"]
        for statement in statements:
            number += 1
            lines.append(row(number, statement, tests))
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())

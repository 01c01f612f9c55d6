"""Which dead letters are meant by the options, and what becomes of a choice that says nothing."""

from typing import Any

import pytest
import typer

from whimbrel.cli.dlq import Chosen, chosen_by, chosen_or_all, settle
from whimbrel.cli.output import Format
from whimbrel.client import (
    DeadLetter,
    DeadLetterOutcome,
    DeadLetterResult,
    MessageType,
    Queue,
    ReceivedMessage,
)

QUEUE = Queue(
    topic="%DLQ%g", broker_name="b", broker_id=0, queue_id=-1, readable=True, writable=False, endpoints=()
)


def letter(number: int, **fields: Any) -> DeadLetter:
    made: dict[str, Any] = {
        "topic": "%DLQ%g", "body": b"x", "message_id": f"id-{number}", "tag": None,
        "keys": (f"k{number}", "all"), "properties": {}, "type": MessageType.NORMAL,
        "queue": QUEUE, "queue_id": 0, "queue_offset": number,
        "born_at": 1.0, "born_host": "", "stored_at": 1000.0 + number, "store_host": "",
    }  # fmt: skip
    return DeadLetter(group="g", message=ReceivedMessage(**(made | fields)), origin_topic=f"t{number % 2}")


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        (Chosen(), [0, 1, 2, 3]),
        (Chosen(ids=frozenset({"id-1", "id-9"})), [1]),
        (Chosen(key="k2"), [2]),
        (Chosen(key="all", topic="t1"), [1, 3]),
        (Chosen(since=1001.0), [1, 2, 3]),
        (Chosen(until=1001.0), [0]),
        (Chosen(since=1001.0, until=1003.0, topic="t0"), [2]),
    ],
)
def test_all_that_is_asked_for_counts_together(chosen: Chosen, numbers: list[int]) -> None:
    assert [number for number in range(4) if chosen.has(letter(number))] == numbers


def test_nothing_is_put_back_or_dropped_without_a_choice() -> None:
    with pytest.raises(typer.BadParameter, match="or take --all"):
        chosen_or_all(Chosen(), False)
    with pytest.raises(typer.BadParameter, match="or take --all"):
        chosen_or_all(Chosen(key="k"), True)
    assert chosen_or_all(Chosen(), True) == Chosen()


@pytest.mark.parametrize("option", ["since", "until"])
def test_a_time_that_is_none_names_its_option(option: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"--{option}"):
        chosen_by(None, "", "", **{"since": "", "until": "", option: "soon"})


def test_what_was_refused_is_told_and_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    def work(some: Any) -> list[DeadLetterOutcome]:
        refused = DeadLetterOutcome(result=DeadLetterResult.REFUSED, why="no topic t1")
        done = DeadLetterOutcome(result=DeadLetterResult.DONE, topic="t0")
        return [refused if one.origin_topic == "t1" else done for one in some]

    with pytest.raises(typer.Exit) as end:
        settle(map(letter, range(3)), work, "put back", Format.JSON)
    assert end.value.exit_code == 1
    printed = capsys.readouterr()
    assert '"put back": 2' in printed.out.replace("put_back", "put back") and '"refused": 1' in printed.out
    assert "id-1: no topic t1" in printed.err


def test_a_dry_run_counts(capsys: pytest.CaptureFixture[str]) -> None:
    settle(map(letter, range(3)), None, "dropped", Format.JSON)
    assert '"chosen": 3' in capsys.readouterr().out

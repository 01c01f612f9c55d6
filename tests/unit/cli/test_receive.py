"""What is printed is acknowledged, and nothing else; a table does not outlast the leases of its messages."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import pytest

from whimbrel.cli import receive
from whimbrel.cli.output import Format
from whimbrel.cli.receive import Receiving
from whimbrel.cli.shown_messages import message_printer
from whimbrel.client import MessageType, Queue, ReceivedMessage
from whimbrel.errors import InvalidReceiptHandle, WhimbrelError

MESSAGE = ReceivedMessage(
    topic="t", body=b"x", message_id="", tag=None, keys=(), properties={}, type=MessageType.NORMAL,
    queue=Queue(topic="t", broker_name="b", broker_id=0, queue_id=0, readable=True, writable=True,
    endpoints=()), queue_id=0, queue_offset=0, born_at=None, born_host="", stored_at=None, store_host="",
)  # fmt: skip
MESSAGES = [dataclasses.replace(MESSAGE, queue_offset=number) for number in range(3)]


class Acknowledging:
    """A consumer that notes what is acknowledged."""

    def __init__(self, *failures: WhimbrelError) -> None:
        self.acked: list[list[int]] = []
        self.failures = failures

    def ack_all(self, messages: Sequence[ReceivedMessage]) -> list[WhimbrelError | None]:
        self.acked.append([message.queue_offset for message in messages])
        return list(self.failures) or [None] * len(messages)


def receiving(consumer: Any, output: Format, *, strict: bool = True, acknowledge: bool = True) -> Receiving:
    printer = message_printer(output, None)
    return Receiving(consumer, printer, acknowledge=acknowledge, strict=strict)


def test_the_first_message_is_printed_and_acknowledged_alone() -> None:
    consumer = Acknowledging()
    one = receiving(consumer, Format.JSONL)
    one.take(MESSAGES, until=0)
    one.take(MESSAGES[:2], until=0)
    assert consumer.acked == [[0], [1, 2], [0, 1]]


def test_a_table_is_acknowledged_when_it_is_printed() -> None:
    consumer = Acknowledging()
    one = receiving(consumer, Format.TABLE)
    one.take(MESSAGES, until=time.monotonic() + 60)
    one.look()
    assert consumer.acked == []
    one.end()
    assert consumer.acked == [[0, 1, 2]]


def test_a_table_is_printed_before_the_leases_of_its_messages_end(capsys: pytest.CaptureFixture[str]) -> None:
    consumer = Acknowledging()
    one = receiving(consumer, Format.TABLE)
    one.take(MESSAGES[:1], until=time.monotonic() - 1)
    one.take(MESSAGES[1:], until=time.monotonic() + 60)  # the oldest one counts
    one.look()
    assert consumer.acked == [[0, 1, 2]]
    assert "broker" in capsys.readouterr().out
    one.take(MESSAGES[:1], until=time.monotonic() + 60)
    one.look()
    assert consumer.acked == [[0, 1, 2]]


def test_what_its_reader_left_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "was_read", lambda count: count == 1)
    consumer = Acknowledging()
    one = receiving(consumer, Format.JSONL)
    with pytest.raises(BrokenPipeError):
        one.take(MESSAGES, until=0)
    assert consumer.acked == [[0]]


def test_nothing_is_acknowledged_without_being_told() -> None:
    consumer = Acknowledging()
    receiving(consumer, Format.JSONL, acknowledge=False).take(MESSAGES, until=0)
    assert consumer.acked == []


def test_a_failed_acknowledgement_ends_the_command_unless_it_follows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    consumer = Acknowledging(InvalidReceiptHandle("the lease has ended"))
    with pytest.raises(InvalidReceiptHandle, match=r"^1 of 1 messages could not be acknowledged: the lease"):
        receiving(consumer, Format.JSONL).take(MESSAGES[:1], until=0)
    receiving(consumer, Format.JSONL, strict=False).take(MESSAGES[:1], until=0)
    assert "the lease has ended; they come again" in capsys.readouterr().err

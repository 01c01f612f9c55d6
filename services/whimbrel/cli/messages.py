"""`whimbrel send`, `receive` and `pull`."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint, traced
from whimbrel.cli.group import parse_target
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, body_fields, emit, note, shorten, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whimbrel.client import Message, Queue, ReceivedMessage, SendReceipt

__all__ = ["pull", "receive", "send"]

ROWS_MAX = 100  # of a table of receipts; the rest is counted
TOOLS_GROUP = "TOOLS_CONSUMER"  # RocketMQ's brokers, and ours, have this group from the start

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")]

SEND_EXAMPLES = examples(
    "whimbrel send orders 'hello'",
    "whimbrel send orders 'hello' --tag new --key 4711 --property region=eu",
    "whimbrel send orders - < body.json              the body from standard input",
    "whimbrel send orders 'load' --count 1000 --batch 32",
)
RECEIVE_EXAMPLES = examples(
    "whimbrel receive orders --group billing",
    "whimbrel receive orders --group billing --count 10 --wait 30",
    "whimbrel receive orders --group billing --tag 'new || paid'",
    "whimbrel receive orders --group billing --no-ack      others get them again after --invisible",
)
PULL_EXAMPLES = examples(
    "whimbrel pull orders --queue 0",
    "whimbrel pull orders --queue 0 --offset 1200 --count 5 -o json",
    "whimbrel pull orders --queue 0 --offset 2026-01-31T12:00:00Z",
    "whimbrel pull orders --queue 0 --offset latest --wait 20",
)


def send(
    topic: TopicArgument,
    body: Annotated[str, typer.Argument(metavar="BODY|-", help="Text, or - for standard input.")] = "-",
    tag: Annotated[str | None, typer.Option(help="Tag that consumers can filter by.")] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="Key to find it by; may be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="K=V", help="User property; may be repeated.")
    ] = None,
    message_group: Annotated[
        str | None, typer.Option("--message-group", help="Keeps order within it, on a fifo topic.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Send it so many times.")] = 1,
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Messages in one request.")] = 1,
    queue: Annotated[int | None, typer.Option(min=0, help="Queue id; else by turns.")] = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Send a message, or many of the same; tells where each was stored."""
    from whimbrel.client import Message, sync

    pairs = dict(pair(text) for text in properties or ())
    if body == "-" and sys.stdin.isatty():
        note("reading the body from standard input; end it with Ctrl-D")
    message = Message(
        topic=topic,
        body=sys.stdin.buffer.read() if body == "-" else body.encode(),
        tag=tag,
        keys=tuple(key or ()),
        properties=pairs,
        message_group=message_group,
    )
    receipts: list[SendReceipt] = []
    with traced(endpoint), sync.Producer(resolve_endpoint(endpoint), topics=[topic]) as producer:
        turn = Turn(queue)
        started = time.monotonic()
        while len(receipts) < count:
            batch_now = [message] * min(batch, count - len(receipts))
            selector = None if message_group is not None else turn
            receipts += producer.send_batch(batch_now, selector=selector)
        elapsed = time.monotonic() - started
    rows = [
        (receipt.message_id, receipt.broker_name, receipt.queue_id, receipt.queue_offset)
        for receipt in receipts[:ROWS_MAX]
    ]
    emit(receipts, output, columns=("message id", "broker", "queue", "offset"), rows=rows)
    if output is Format.TABLE and count > 1:
        note(f"sent {count} messages in {elapsed:.2f} s ({count / elapsed:.0f} a second)")


def receive(
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", help="Consumer group.")],
    count: Annotated[int, typer.Option(min=1, help="Stop after so many messages.")] = 32,
    acknowledge: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Whether the group is done with them.")
    ] = True,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first message.")] = 5.0,
    tag: Annotated[str, typer.Option("--tag", help="Tags to take, separated by ||; * for all.")] = "*",
    invisible: Annotated[
        float, typer.Option(min=1, help="Seconds until messages that are not acknowledged come again.")
    ] = 30.0,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Receive messages as a member of a consumer group, and acknowledge them once they are printed."""
    from whimbrel.client import sync

    with traced(endpoint), sync.Consumer(resolve_endpoint(endpoint), group, {topic: tag}) as consumer:
        messages: list[ReceivedMessage] = []
        left = wait
        while len(messages) < count:
            more = consumer.receive(count - len(messages), wait_s=left, invisible_s=invisible)
            if not more:
                break
            messages += more
            left = 0.0
        print_messages(messages, output)
        sys.stdout.flush()
        if not messages:
            note(f"no message for group {group} within {wait:g} s")
        if acknowledge:
            failed = [error for error in consumer.ack_all(messages) if error is not None]
            if failed:
                raise type(failed[0])(
                    f"{len(failed)} of {len(messages)} messages could not be acknowledged: {failed[0]}"
                )


def pull(
    topic: TopicArgument,
    queue: Annotated[int, typer.Option("--queue", "-q", min=0, help="Queue id.")],
    offset: Annotated[
        str,
        typer.Option(metavar="WHERE", help="Queue offset, earliest, latest, or a time (ISO 8601)."),
    ] = "earliest",
    count: Annotated[int, typer.Option(min=1, help="Stop after so many messages.")] = 32,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait when there is none yet.")] = 0.0,
    tag: Annotated[str, typer.Option("--tag", help="Tags to take, separated by ||; * for all.")] = "*",
    broker: Annotated[str, typer.Option(help="Broker name, where several hold the topic.")] = "",
    group: Annotated[str, typer.Option("--group", "-g", help="Group to read as; its offsets stay.")] = "",
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Read a queue from an offset on; takes no leases and moves no offsets."""
    from whimbrel.client import sync

    target = parse_target(offset)
    with traced(endpoint), sync.PullConsumer(resolve_endpoint(endpoint), group or TOOLS_GROUP) as reader:
        found = chosen_queue(reader.queues(topic), topic, queue, broker)
        position = target if isinstance(target, int) else reader.offset(found, target)
        messages: list[ReceivedMessage] = []
        left = wait
        while len(messages) < count:
            result = reader.pull(
                found, position, count=min(32, count - len(messages)), wait_s=left, expression=tag
            )
            messages += result.messages
            if result.next_offset == position:
                break
            position = result.next_offset
            left = 0.0 if messages else left
    print_messages(messages, output)
    if output is Format.TABLE:
        note(f"next offset {position}")


class Turn:
    """Chooses queues in turn, or always the given one."""

    def __init__(self, queue_id: int | None) -> None:
        self.queue_id = queue_id
        self.count = 0

    def __call__(self, message: "Message", queues: "Sequence[Queue]") -> "Queue":
        if self.queue_id is None:
            self.count += 1
            return queues[self.count % len(queues)]
        return chosen_queue(queues, message.topic, self.queue_id, "")


def chosen_queue(queues: "Sequence[Queue]", topic: str, queue_id: int, broker: str) -> "Queue":
    from whimbrel.errors import BadRequest

    fitting = [queue for queue in queues if queue.queue_id == queue_id and broker in ("", queue.broker_name)]
    if len(fitting) == 1:
        return fitting[0]
    held = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues[:ROWS_MAX]) or "none"
    if fitting:
        raise BadRequest(f"several brokers have a queue {queue_id} of {topic}; choose with --broker")
    where = f" on {broker}" if broker else ""
    raise BadRequest(f"topic {topic} has no queue {queue_id}{where}; it has {held}")


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint="--property")
    return key, value


def print_messages(messages: "Sequence[ReceivedMessage]", output: Format) -> None:
    rows = [
        (
            message.queue.broker_name,
            message.queue_id,
            message.queue_offset,
            message.message_id,
            message.tag,
            " ".join(message.keys) or None,
            message.delivery_attempt or None,
            time_text(message.stored_at),
            shorten(message.body),
        )
        for message in messages
    ]
    columns = ("broker", "queue", "offset", "message id", "tag", "keys", "attempt", "stored (UTC)", "body")
    emit([as_object(message) for message in messages], output, columns=columns, rows=rows)


def as_object(message: "ReceivedMessage") -> dict[str, Any]:
    """Return a message for JSON; its queue as broker name and id."""
    return {
        "topic": message.topic,
        "broker_name": message.queue.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "type": message.type.value,
        "message_group": message.message_group,
        "born_at": message.born_at,
        "born_host": message.born_host,
        "stored_at": message.stored_at,
        "store_host": message.store_host,
        "delivery_attempt": message.delivery_attempt,
        "receipt_handle": message.receipt_handle,
        **body_fields(message.body),
    }

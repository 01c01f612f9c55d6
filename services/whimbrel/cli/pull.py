"""`whimbrel pull`: reads a queue from an offset on. `whimbrel tail` (tail.py) reads a whole topic."""

from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint, traced
from whimbrel.cli.filters import SqlOption, TagOption, filter_of
from whimbrel.cli.group import parse_target
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, note
from whimbrel.cli.printing import reader_gone
from whimbrel.cli.shown_messages import FormatOption, message_printer, template_of
from whimbrel.cli.unasked import saying_what_lacks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whimbrel.client import Queue

__all__ = ["PULL_EXAMPLES", "TOOLS_GROUP", "chosen_queue", "pull"]

QUEUES_SHOWN_MAX = 100  # in an error
TOOLS_GROUP = "TOOLS_CONSUMER"  # RocketMQ's brokers, and ours, have this group from the start

PULL_EXAMPLES = examples(
    "whimbrel pull orders --queue 0",
    "whimbrel pull orders --queue 0 --offset 1200 --count 5 -o json",
    "whimbrel pull orders --queue 0 --offset 2026-01-31T12:00:00Z",
    "whimbrel pull orders --queue 0 --offset latest --wait 20",
    r"whimbrel pull orders --queue 0 --format '%o %v\n'",
)


def pull(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")],
    queue: Annotated[int, typer.Option("--queue", "-q", min=0, help="Queue id.")],
    offset: Annotated[
        str,
        typer.Option(metavar="WHERE", help="Queue offset, earliest, latest, or a time (ISO 8601)."),
    ] = "earliest",
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Stop after so many messages.")] = 32,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Seconds to wait when there is none yet.")
    ] = 0.0,
    tag: TagOption = "*",
    sql: SqlOption = None,
    broker: Annotated[
        str, typer.Option(metavar="NAME", help="Broker name, where several hold the topic.")
    ] = "",
    group: Annotated[str, typer.Option("--group", "-g", help="Group to read as; its offsets stay.")] = "",
    template: FormatOption = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Read a queue from an offset on; takes no leases and moves no offsets.

    Without --broker the exit code is 1 when a broker is away: it may have a queue of this number, too.
    """
    from whimbrel.client import sync

    target, wanted = parse_target(offset), filter_of(tag, sql)
    printer = message_printer(output, template_of(template, output))
    found = 0
    with (
        saying_what_lacks() as unasked,
        traced(endpoint),
        sync.PullConsumer(resolve_endpoint(endpoint), group or TOOLS_GROUP) as reader,
    ):
        unasked += [] if broker else reader.away()
        chosen = chosen_queue(reader.queues(topic), topic, queue, broker)
        position = target if isinstance(target, int) else reader.offset(chosen, target)
        left = wait
        while found < count and not reader_gone():
            result = reader.pull(
                chosen, position, count=min(32, count - found), wait_s=left, expression=wanted
            )
            printer.add(result.messages)
            found += len(result.messages)
            if result.next_offset == position:
                break
            position = result.next_offset
            left = 0.0 if found else left
        printer.end()
        if output is Format.TABLE:
            note(f"next offset {position}")


def chosen_queue(queues: "Sequence[Queue]", topic: str, queue_id: int, broker: str) -> "Queue":
    """Return the queue of this id; `broker` "" where one broker alone has the topic.

    Raises:
        BadRequest: there is none, or there are several.
    """
    from whimbrel.errors import BadRequest

    fitting = [queue for queue in queues if queue.queue_id == queue_id and broker in ("", queue.broker_name)]
    if len(fitting) == 1:
        return fitting[0]
    held = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues[:QUEUES_SHOWN_MAX]) or "none"
    if fitting:
        raise BadRequest(f"several brokers have a queue {queue_id} of {topic}; choose with --broker")
    where = f" on {broker}" if broker else ""
    raise BadRequest(f"topic {topic} has no queue {queue_id}{where}; it has {held}")

"""`whimbrel topic`: create, list, describe, update, delete."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, time_text
from whimbrel.cli.unasked import saying_what_lacks, tell_who_missed
from whimbrel.model.limits import QUEUES_MAX

if TYPE_CHECKING:
    from whimbrel.client import TopicDescription

__all__ = ["app"]

app = group("Create, list, describe, update and delete topics.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Topic name.")]
COLUMNS = ("topic", "type", "read queues", "write queues", "permission")
ANSWER_FORM = "committed|written|acks=K"
ANSWER_HELP = (
    "When a send is answered, in groups that commit by majority: written: the leader has the message; acks=K:"
    " K members besides it have; both may be lost with the leader. Consumers see committed messages only."
)


class TopicType(StrEnum):
    """What a topic takes."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    PRIORITY = "priority"
    MIXED = "mixed"


class Access(StrEnum):
    """What may be done with a topic, as on the command line."""

    READ_WRITE = "rw"
    READ = "r"
    WRITE = "w"


ACCESS_BITS = {Access.READ_WRITE: 6, Access.READ: 4, Access.WRITE: 2}


def permission_text(bits: int) -> str:
    """Return permission bits as letters; `x` lends the topic's settings to topics made by a send."""
    letters = ("r" if bits & 4 else "") + ("w" if bits & 2 else "") + ("x" if bits & 1 else "")
    return letters or "none"


@app.command(
    epilog=examples(
        "whimbrel topic create orders",
        "whimbrel topic create orders --queues 16",
        "whimbrel topic create payments --type fifo",
        "whimbrel topic create reminders --type delay",
        "whimbrel topic create orders --broker broker-a --broker broker-c",
    )
)
def create(
    name: NameArgument,
    kind: Annotated[TopicType, typer.Option("--type", help="What the topic takes.")] = TopicType.NORMAL,
    queues: Annotated[
        int, typer.Option("--queues", min=0, max=QUEUES_MAX, help="Queues on each broker; 0: its default.")
    ] = 0,
    broker: Annotated[
        list[str] | None,
        typer.Option("--broker", metavar="NAME", help="On this broker; may be repeated. Default: on all."),
    ] = None,
    answer: Annotated[str, typer.Option(metavar=ANSWER_FORM, help=ANSWER_HELP)] = "committed",
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a topic on every master broker, or on chosen ones."""
    from whimbrel.client import MessageType, sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        topic = admin.create_topic(
            name,
            message_type=MessageType(kind.value),
            queues=queues,
            brokers=tuple(broker or ()),
            answer=answer,
        )
        if not broker:
            tell_who_missed(admin)
    emit(topic, output, columns=COLUMNS, rows=[row(topic)])


@app.command("list", epilog=examples("whimbrel topic list", "whimbrel topic list --system -o json"))
def list_topics(
    system: Annotated[bool, typer.Option("--system", help="Include the brokers' own topics.")] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List the topics of the cluster; queue counts are summed over its brokers."""
    from whimbrel.client import sync

    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        topics = admin.topics(include_system=system, unasked=unasked)
        emit(topics, output, columns=COLUMNS, rows=[row(topic) for topic in topics])


@app.command(epilog=examples("whimbrel topic describe orders", "whimbrel topic describe orders -o json"))
def describe(name: NameArgument, endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """Show a topic's settings, the range of each queue, and the groups that read it."""
    from whimbrel.client import sync

    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        found = admin.describe_topic(name, unasked=unasked)
        show_description(name, found, output)


def show_description(name: str, found: "Sequence[TopicDescription]", output: Format) -> None:
    """Print a topic as its masters hold it."""
    if output is Format.TABLE:
        first = found[0].topic
        groups = sorted({group for item in found for group in item.groups})
        note(
            f"topic {name}: type {first.type}, permission {permission_text(first.permission)},"
            f" groups: {', '.join(groups) or 'none'}"
            + f", answers: {first.answer}"
            * (first.answer != "committed")
        )
    rows = [
        (
            item.broker_name,
            queue.queue_id,
            queue.min_offset,
            queue.max_offset,
            queue.max_offset - queue.min_offset,
            time_text(queue.last_stored_at),
        )
        for item in found
        for queue in item.queues
    ]
    emit(
        found,
        output,
        columns=("broker", "queue", "min offset", "max offset", "messages", "last stored (UTC)"),
        rows=rows,
    )


@app.command(
    epilog=examples("whimbrel topic update orders --queues 32", "whimbrel topic update orders --access r")
)
def update(
    name: NameArgument,
    queues: Annotated[
        int | None,
        typer.Option("--queues", min=1, max=QUEUES_MAX, help="Queues on each broker."),
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option(min=0, max=QUEUES_MAX, help="Readable queues only.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(min=0, max=QUEUES_MAX, help="Writable queues only.")
    ] = None,
    access: Annotated[Access | None, typer.Option(help="What may be done with it.")] = None,
    kind: Annotated[TopicType | None, typer.Option("--type", help="What the topic takes.")] = None,
    answer: Annotated[str | None, typer.Option(metavar=ANSWER_FORM, help=ANSWER_HELP)] = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Change a topic on every master broker; what is not given stays."""
    from whimbrel.client import MessageType, sync

    if all(value is None for value in (queues, read_queues, write_queues, access, kind, answer)):
        raise typer.BadParameter(
            "give at least one of --queues, --read-queues, --write-queues, --access, --type, --answer"
        )
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        topic = admin.update_topic(
            name,
            queues=queues,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=None if access is None else ACCESS_BITS[access],
            message_type=None if kind is None else MessageType(kind.value),
            answer=answer,
        )
        tell_who_missed(admin)
    emit(topic, output, columns=COLUMNS, rows=[row(topic)])


@app.command(epilog=examples("whimbrel topic delete orders", "whimbrel topic delete orders --yes"))
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Delete a topic and its messages from every master broker."""
    from whimbrel.client import sync

    if not yes:
        typer.confirm(f"Delete topic {name} with all of its messages?", abort=True, err=True)
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        admin.delete_topic(name)
        tell_who_missed(admin)
    emit({"deleted": name}, output, columns=("deleted topic",), rows=[(name,)])


def row(topic: object) -> tuple[object, ...]:
    from whimbrel.client import TopicConfig

    assert isinstance(topic, TopicConfig)
    return (
        topic.name,
        topic.type.value,
        topic.read_queues,
        topic.write_queues,
        permission_text(topic.permission),
    )

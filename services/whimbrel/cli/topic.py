"""`whimbrel topic`: create, list, describe, update, delete."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.asking import YesOption, ask, counted
from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, time_text
from whimbrel.cli.unasked import saying_what_lacks, tell_who_missed
from whimbrel.model.cluster import Takes
from whimbrel.model.limits import QUEUES_MAX

if TYPE_CHECKING:
    from whimbrel.client import TopicDescription, sync

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


FINISHED_S = 60.0  # a consumer that works does a minute's backlog; one that does not needs a look
READ, WRITE = 4, 2
ACCESS_BITS = {Access.READ_WRITE: 6, Access.READ: 4, Access.WRITE: WRITE}


def permission_text(bits: int, *, drained: bool = False) -> str:
    """Return permission bits as letters; `x` lends the topic's settings to topics made by a send."""
    if drained:
        return f"{permission_text(bits)} ({Takes.DRAINED})"
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
        permission = permission_text(first.permission, drained=first.drained)
        note(
            f"topic {name}: type {first.type}, permission {permission},"
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
    for item in found:
        if unread := unread_of(item):
            count = item.topic.read_queues
            note(
                f"{counted(unread)} on {item.broker_name} lie in queues that nobody reads: it has {count}"
                f" queues to read; `whimbrel topic update {name} --read-queues N` has them read"
            )


def unread_of(item: "TopicDescription") -> int:
    """Return how many messages lie in queues beyond those that are read, and some group has not finished."""
    count = item.topic.read_queues if item.topic.permission & READ else 0
    return sum(queue.unfinished for queue in item.queues if queue.queue_id >= count)


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
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Seconds that groups get to finish what would else be hidden."
        ),
    ] = FINISHED_S,
    hide: Annotated[
        bool, typer.Option("--hide", help="Do not wait: what they have not finished is given to nobody.")
    ] = False,
    yes: YesOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Change a topic on every master broker; what is not given stays.

    With fewer queues, those that go are written no more, and read until all groups have finished their
    messages; exit code 1 if that takes longer than --wait. Repeat it then. With --hide it asks instead, with
    how many messages nobody is given.
    """
    from whimbrel.client import MessageType, sync
    from whimbrel.errors import WouldHide

    if all(value is None for value in (queues, read_queues, write_queues, access, kind, answer)):
        raise typer.BadParameter(
            "give at least one of --queues, --read-queues, --write-queues, --access, --type, --answer"
        )
    permission = None if access is None else ACCESS_BITS[access]
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        if hide:
            reading = queues if read_queues is None else read_queues
            ask(lambda: hiding(admin, name, 0 if permission == WRITE else reading), yes=yes)
        try:
            topic = admin.update_topic(
                name,
                queues=queues,
                read_queues=read_queues,
                write_queues=write_queues,
                permission=permission,
                message_type=None if kind is None else MessageType(kind.value),
                answer=answer,
                wait_s=wait,
                hide_messages=hide,
                on_wait=lambda error: note(f"{error}; waiting for {wait:g} s until they have"),
            )
        except WouldHide as error:
            note(f"whimbrel: {error}")
            note(
                "nothing is hidden: repeat the command once groups have finished, or with a longer --wait;"
                " --hide does it at once"
            )
            raise typer.Exit(1) from error
        tell_who_missed(admin)
    emit(topic, output, columns=COLUMNS, rows=[row(topic)])


@app.command(epilog=examples("whimbrel topic delete orders", "whimbrel topic delete orders --yes"))
def delete(
    name: NameArgument,
    yes: YesOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Delete a topic and its messages from every master broker."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        ask(lambda: deletion(admin, name), yes=yes)
        admin.delete_topic(name)
        tell_who_missed(admin)
    emit({"deleted": name}, output, columns=("deleted topic",), rows=[(name,)])


def hiding(admin: "sync.Admin", name: str, reading: int | None) -> str:
    """Return what a topic with so many queues to read hides, for the question; empty for nothing."""
    if reading is None:
        return ""
    hidden = [
        queue.unfinished
        for item in admin.describe_topic(name, unasked=[])
        for queue in item.queues
        if reading <= queue.queue_id < item.topic.read_queues
    ]
    return f"hide {counted(sum(hidden))} of {name}, which nobody would be given" if sum(hidden) else ""


def deletion(admin: "sync.Admin", name: str) -> str:
    """Return what goes with a topic, for the question."""
    found = admin.describe_topic(name, unasked=[])
    messages = sum(queue.max_offset - queue.min_offset for item in found for queue in item.queues)
    groups = sorted({group for item in found for group in item.groups})
    read_by = f", which {', '.join(groups)} read" + "s" * (len(groups) == 1) if groups else ""
    return f"delete topic {name} with its {counted(messages)}{read_by}"


def row(topic: object) -> tuple[object, ...]:
    from whimbrel.client import TopicConfig

    assert isinstance(topic, TopicConfig)
    return (
        topic.name,
        topic.type.value,
        topic.read_queues,
        topic.write_queues,
        permission_text(topic.permission, drained=topic.drained),
    )

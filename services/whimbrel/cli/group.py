"""`whimbrel group`: create, list, describe, update, delete, reset-offsets."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, time_text

if TYPE_CHECKING:
    from whimbrel.client import GroupConfig, GroupProgress

__all__ = ["app", "parse_target"]

app = group("Create, list, describe, update and delete consumer groups; reset their offsets.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Consumer group name.")]
COLUMNS = ("group", "fifo", "max attempts", "consume enabled")
PROGRESS_COLUMNS = ("broker", "topic", "queue", "committed", "next", "max offset", "in flight", "lag")


@app.command(
    epilog=examples(
        "whimbrel group create billing",
        "whimbrel group create ledger --fifo",
        "whimbrel group create mailer --max-attempts 5",
    )
)
def create(
    name: NameArgument,
    fifo: Annotated[bool, typer.Option("--fifo", help="Its consumers get messages in order.")] = False,
    max_attempts: Annotated[
        int,
        typer.Option(min=0, max=1000, help="Deliveries of a message, the first included; 0: default."),
    ] = 0,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a consumer group on every master broker."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        made = admin.create_group(name, fifo=fifo, max_attempts=max_attempts)
    emit(made, output, columns=COLUMNS, rows=[row(made)])


@app.command("list", epilog=examples("whimbrel group list", "whimbrel group list -o json"))
def list_groups(endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """List the consumer groups of the cluster."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        groups = admin.groups()
    emit(groups, output, columns=COLUMNS, rows=[row(item) for item in groups])


@app.command(epilog=examples("whimbrel group describe billing", "whimbrel group describe billing -o json"))
def describe(name: NameArgument, endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """Show a group's settings, its progress on each queue, and its clients."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        found = admin.describe_group(name)
    if output is Format.TABLE:
        first = found[0].group
        note(
            f"group {name}: {'fifo' if first.fifo else 'not ordered'}, max attempts {first.max_attempts},"
            f" consume {'enabled' if first.consume_enabled else 'disabled'}"
        )
        for item in found:
            for client in item.clients:
                note(
                    f"client {client.client_id} ({client.language} {client.version}) on"
                    f" {item.broker_name}, last heard {time_text(client.last_seen_at)}"
                )
    rows = [progress_row(item.broker_name, progress) for item in found for progress in item.progress]
    emit(found, output, columns=PROGRESS_COLUMNS, rows=rows)


@app.command(
    epilog=examples(
        "whimbrel group update mailer --max-attempts 3",
        "whimbrel group update mailer --no-consume       stop its reads",
        "whimbrel group update mailer --consume",
    )
)
def update(
    name: NameArgument,
    fifo: Annotated[
        bool | None, typer.Option("--fifo/--no-fifo", help="Its consumers get messages in order.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Deliveries of a message, the first included.")
    ] = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether it may read.")
    ] = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Change a group on every master broker; what is not given stays."""
    from whimbrel.client import sync

    if fifo is None and max_attempts is None and consume is None:
        raise typer.BadParameter(
            "give at least one of --fifo/--no-fifo, --max-attempts, --consume/--no-consume"
        )
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        changed = admin.update_group(name, fifo=fifo, max_attempts=max_attempts, consume_enabled=consume)
    emit(changed, output, columns=COLUMNS, rows=[row(changed)])


@app.command(epilog=examples("whimbrel group delete billing --yes"))
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Delete a group with its offsets and leases from every master broker."""
    from whimbrel.client import sync

    if not yes:
        typer.confirm(f"Delete group {name} with its offsets?", abort=True, err=True)
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        admin.delete_group(name)
    emit({"deleted": name}, output, columns=("deleted group",), rows=[(name,)])


@app.command(
    "reset-offsets",
    epilog=examples(
        "whimbrel group reset-offsets billing orders --to earliest",
        "whimbrel group reset-offsets billing orders --to latest",
        "whimbrel group reset-offsets billing orders --to 2026-01-31T12:00:00Z",
        "whimbrel group reset-offsets billing orders --to 1200 --queue 3",
    ),
)
def reset_offsets(
    name: NameArgument,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="WHERE", help="earliest, latest, a queue offset, or a time (ISO 8601)."),
    ],
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="This queue alone.")] = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Move a group's position on a topic; leases that it holds there end."""
    from whimbrel.client import sync

    target = parse_target(to)
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        found = admin.reset_offsets(name, topic, to=target, queue_id=queue)
    rows = [progress_row(broker, progress) for broker, items in found.items() for progress in items]
    emit(found, output, columns=PROGRESS_COLUMNS, rows=rows)


def parse_target(text: str) -> str | int | float:
    """Return `earliest`, `latest`, an offset (int) or a time (float, epoch seconds; UTC unless it says else).

    Raises:
        typer.BadParameter: it is neither.
    """
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest, an offset, nor a time such as 2026-01-31T12:00:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def row(item: "GroupConfig") -> tuple[object, ...]:
    return item.name, yes_or_no(item.fifo), item.max_attempts, yes_or_no(item.consume_enabled)


def progress_row(broker: str, item: "GroupProgress") -> tuple[object, ...]:
    return (
        broker,
        item.topic,
        item.queue_id,
        item.committed_offset,
        item.next_offset,
        item.max_offset,
        item.in_flight,
        item.lag,
    )


def yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"

"""`whimbrel group`: create, list, describe, update, delete, reset-offsets."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.asking import YesOption, ask, counted
from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, time_text
from whimbrel.cli.times import duration_of, moment_of
from whimbrel.cli.unasked import saying_what_lacks, tell_who_missed
from whimbrel.model.unasked import left_out

if TYPE_CHECKING:
    from whimbrel.client import (
        CustomizedRetries,
        ExponentialRetries,
        GroupConfig,
        GroupDescription,
        GroupProgress,
        OffsetMove,
        OrderedBy,
        sync,
    )

__all__ = ["app", "parse_target"]

app = group("Create, list, describe, update and delete consumer groups; reset their offsets.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Consumer group name.")]
COLUMNS = ("group", "ordered", "max attempts", "backoff", "consume enabled")
BACKOFF_HELP = "Waits between attempts: 1s,10s,1m or exponential[:5s,2h,2] or default."
PROGRESS_COLUMNS = ("broker", "topic", "queue", "committed", "next", "max offset", "in flight", "lag")

MOVE_COLUMNS = ("broker", "topic", "queue", "before", "after", "come again", "skipped", "in flight")


class Order(StrEnum):
    """What a message of an ordered group waits for."""

    QUEUE = "queue"
    MESSAGE_GROUP = "message-group"


OrderOption = Annotated[
    Order | None,
    typer.Option(
        "--ordered-by",
        help="What a message waits for: all before it in its queue (--fifo), or those of its message group.",
        show_default=False,
    ),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(
        "--priority-percent",
        min=0,
        max=100,
        help="How many of 100 receives on a priority topic begin with the greatest ones; 100: all.",
        show_default=False,
    ),
]
BackoffOption = Annotated[
    str | None, typer.Option("--backoff", metavar="WAITS", help=BACKOFF_HELP, show_default=False)
]


@app.command(
    epilog=examples(
        "whimbrel group create billing",
        "whimbrel group create ledger --fifo",
        "whimbrel group create ledger --ordered-by message-group",
        "whimbrel group create mailer --max-attempts 5 --backoff 1s,10s,1m",
        "whimbrel group create mailer --backoff exponential:5s,2h,2",
    )
)
def create(
    name: NameArgument,
    fifo: Annotated[bool, typer.Option("--fifo", help="Its consumers get messages in order.")] = False,
    max_attempts: Annotated[
        int,
        typer.Option(min=0, max=1000, help="Deliveries before it is a dead letter; 0: default."),
    ] = 0,
    ordered_by: OrderOption = None,
    backoff: BackoffOption = None,
    priority_percent: PriorityOption = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a consumer group on every master broker."""
    from whimbrel.client import OrderedBy, sync

    ordered, order = order_of(fifo or None, ordered_by)
    policy = backoff_of(backoff)
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        made = admin.create_group(
            name,
            fifo=bool(ordered),
            max_attempts=max_attempts,
            ordered_by=order or OrderedBy.QUEUE,
            retry_policy=policy,
            priority_percent=priority_percent,
        )
        tell_who_missed(admin)
    if priority_percent not in (None, made.priority_percent):
        note("the brokers are of an earlier version: --priority-percent is not set")
    if made.fifo and order not in (None, made.ordered_by):
        note(f"the brokers are of an earlier version: the group is ordered by {made.ordered_by.value}")
    emit(made, output, columns=COLUMNS, rows=[row(made)])


@app.command("list", epilog=examples("whimbrel group list", "whimbrel group list -o json"))
def list_groups(endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """List the consumer groups of the cluster."""
    from whimbrel.client import sync

    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        groups = admin.groups(unasked=unasked)
        emit(groups, output, columns=COLUMNS, rows=[row(item) for item in groups])


@app.command(epilog=examples("whimbrel group describe billing", "whimbrel group describe billing -o json"))
def describe(name: NameArgument, endpoint: EndpointOption = "", output: OutputOption = Format.TABLE) -> None:
    """Show a group's settings, its progress on each queue, and its clients."""
    from whimbrel.client import sync

    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        found = admin.describe_group(name, unasked=unasked)
        show_description(name, found, output)


def show_description(name: str, found: "Sequence[GroupDescription]", output: Format) -> None:
    """Print a group as its masters hold it."""
    if output is Format.TABLE:
        first = found[0].group
        note(
            f"group {name}: {'ordered ' + order_text(first) if first.fifo else 'not ordered'},"
            f" max attempts {first.max_attempts}, backoff {backoff_text(first.retry_policy)},"
            f" consume {'enabled' if first.consume_enabled else 'disabled'}{priority_text(first)}"
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
        "whimbrel group update ledger --ordered-by message-group",
        "whimbrel group update mailer --no-consume       stop its reads",
        "whimbrel group update urgent --priority-percent 80",
        "whimbrel group update mailer --consume",
    )
)
def update(
    name: NameArgument,
    fifo: Annotated[
        bool | None, typer.Option("--fifo/--no-fifo", help="Its consumers get messages in order.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Deliveries before it is a dead letter.")
    ] = None,
    ordered_by: OrderOption = None,
    backoff: BackoffOption = None,
    priority_percent: PriorityOption = None,
    consume: Annotated[
        bool | None, typer.Option("--consume/--no-consume", help="Whether it may read.")
    ] = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Change a group on every master broker; what is not given stays."""
    from whimbrel.client import sync

    fifo, order = order_of(fifo, ordered_by)
    policy = backoff_of(backoff)
    if all(each is None for each in (fifo, max_attempts, consume, policy, priority_percent)):
        raise typer.BadParameter(
            "give at least one of --fifo/--no-fifo, --ordered-by, --max-attempts, --backoff,"
            " --priority-percent, --consume/--no-consume"
        )
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        changed = admin.update_group(
            name,
            fifo=fifo,
            max_attempts=max_attempts,
            consume_enabled=consume,
            ordered_by=order,
            retry_policy=policy,
            priority_percent=priority_percent,
        )
        tell_who_missed(admin)
    if priority_percent not in (None, changed.priority_percent):
        note("the brokers are of an earlier version: --priority-percent is not set")
    emit(changed, output, columns=COLUMNS, rows=[row(changed)])


@app.command(epilog=examples("whimbrel group delete billing --yes"))
def delete(
    name: NameArgument,
    yes: YesOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Delete a group with its offsets and leases from every master broker."""
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        ask(lambda: deletion(admin, name), yes=yes)
        admin.delete_group(name)
        tell_who_missed(admin)
    emit({"deleted": name}, output, columns=("deleted group",), rows=[(name,)])


@app.command(
    "reset-offsets",
    epilog=examples(
        "whimbrel group reset-offsets billing orders --to earliest --dry-run",
        "whimbrel group reset-offsets billing orders --to latest --yes",
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
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="This queue alone.")] = None,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would come of it.")] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Move a group's position on a topic; leases that it holds there end.

    Asks first, with how many messages come again, and how many are skipped.
    """
    from whimbrel.client import sync

    target = parse_target(to)
    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        unasked += left_out(admin.cluster())
        if dry_run:
            plan = admin.plan_reset(name, topic, to=target, queue_id=queue)
            moves = [(broker, move) for broker, items in plan.items() for move in items]
            emit(plan, output, columns=MOVE_COLUMNS, rows=[move_row(*each) for each in moves])
            return
        ask(lambda: resetting(name, topic, admin.plan_reset(name, topic, to=target, queue_id=queue)), yes=yes)
        found = admin.reset_offsets(name, topic, to=target, queue_id=queue)
        rows = [progress_row(broker, progress) for broker, items in found.items() for progress in items]
        emit(found, output, columns=PROGRESS_COLUMNS, rows=rows)


def resetting(name: str, topic: str, plan: "Mapping[str, Sequence[OffsetMove]]") -> str:
    """Return what a reset does, for the question."""
    moves = [move for items in plan.values() for move in items]
    again, skipped = sum(move.again for move in moves), sum(move.skipped for move in moves)
    held = sum(move.in_flight for move in moves)
    text = (
        f"move group {name} on {counted(len(moves), 'queue')} of {topic}: {counted(again)} that it has"
        f" finished would come again, {skipped:,} that it has not would be skipped"
    )
    return f"{text}, and leases on {counted(held)} would end" if held else text


def deletion(admin: "sync.Admin", name: str) -> str:
    """Return what goes with a group, for the question."""
    found = admin.describe_group(name, unasked=[])
    progress = [one for item in found for one in item.progress]
    topics = sorted({one.topic for one in progress})
    text = f"delete group {name}"
    if topics:
        text += f" with its positions on {', '.join(topics)}"
    if lag := sum(one.lag for one in progress):
        text += f", where it has not finished {counted(lag)}"
    return text


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
        return moment_of(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither earliest, latest, an offset, nor a time such as 2026-01-31T12:00:00Z"
        ) from None


def order_of(fifo: bool | None, ordered_by: "Order | None") -> "tuple[bool | None, OrderedBy | None]":
    """Return what --fifo and --ordered-by ask for; a kind of order makes the group ordered.

    Raises:
        typer.BadParameter: the group shall not be ordered, and by something.
    """
    from whimbrel.client import OrderedBy

    if ordered_by is None:
        return fifo, None
    if fifo is False:
        raise typer.BadParameter("a group without order has no kind of it", param_hint="--ordered-by")
    return True, OrderedBy(ordered_by.value)


def backoff_of(text: str | None) -> "CustomizedRetries | ExponentialRetries | None":
    """Return the policy that --backoff describes, None for none.

    Raises:
        typer.BadParameter: it describes none.
    """
    from whimbrel.client import CustomizedRetries, ExponentialRetries
    from whimbrel.model.retry import check_policy

    if text is None:
        return None
    kind, _, rest = text.partition(":")
    try:
        if kind == "default" and not rest:
            return CustomizedRetries()
        policy: CustomizedRetries | ExponentialRetries
        if kind == "exponential":
            parts = rest.split(",") if rest else ["5s", "2h", "2"]
            if len(parts) != 3:
                raise ValueError("it has an initial wait, a longest one, and a factor")
            initial_ms, max_ms = (milliseconds(part) for part in parts[:2])
            policy = ExponentialRetries(initial_ms=initial_ms, max_ms=max_ms, multiplier=int(parts[2]))
        else:
            policy = CustomizedRetries(tuple(milliseconds(part) for part in text.split(",")))
        check_policy(policy)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--backoff") from None
    return policy


def milliseconds(text: str) -> int:
    return round(duration_of(text, "--backoff") * 1000)


def backoff_text(policy: "CustomizedRetries | ExponentialRetries | None") -> str:
    """Return a policy as --backoff takes it."""
    from whimbrel.client import CustomizedRetries

    if policy is None or policy == CustomizedRetries():
        return "default"
    if isinstance(policy, CustomizedRetries):
        return ",".join(map(wait_text, policy.waits_ms))
    longest = wait_text(policy.max_ms)
    return f"exponential:{wait_text(policy.initial_ms)},{longest},{policy.multiplier}"


def wait_text(wait_ms: int) -> str:
    for unit, size_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if wait_ms % size_ms == 0:
            return f"{wait_ms // size_ms}{unit}"
    return f"{wait_ms}ms"


def order_text(item: "GroupConfig") -> str:
    return f"by {item.ordered_by.value}" if item.fifo else "no"


def priority_text(item: "GroupConfig") -> str:
    percent = item.priority_percent
    return "" if percent in (None, 100) else f", {percent} of 100 receives by priority"


def row(item: "GroupConfig") -> tuple[object, ...]:
    return (
        item.name,
        order_text(item),
        item.max_attempts,
        backoff_text(item.retry_policy),
        yes_or_no(item.consume_enabled),
    )


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


def move_row(broker: str, move: "OffsetMove") -> tuple[object, ...]:
    place = broker, move.topic, move.queue_id
    return (*place, move.before, move.after, move.again, move.skipped, move.in_flight)


def yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"

"""`whimbrel broker drain`: a broker takes no messages, and says when consumers have all of them."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note

if TYPE_CHECKING:
    from whimbrel.client import DrainStatus

__all__ = ["DRAIN_EXAMPLES", "drain"]

DRAIN_EXAMPLES = examples(
    "whimbrel broker drain broker-b",
    "whimbrel broker drain broker-b --wait 600      exit code 1: it was not empty in time",
    "whimbrel broker drain broker-b --wait 600 --ignore-unread      topics that no group reads do not count",
    "whimbrel broker drain broker-b --undo",
)

COLUMNS = (
    "broker", "drained", "topics", "not delivered", "in flight", "delayed", "transactions", "empty",
)  # fmt: skip
LOOK_S = 0.5  # between looks at a broker that is waited for


def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Broker name, as `whimbrel cluster` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take messages again.")] = False,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Wait so many seconds until it is empty.")
    ] = 0.0,
    ignore_unread: Annotated[
        bool, typer.Option("--ignore-unread", help="Empty in spite of topics that no group reads.")
    ] = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Take no more messages for a broker's topics; consumers go on, until it is empty.

    The command may be repeated. A drained broker stays so over restarts, until --undo.
    """
    from whimbrel.client import sync

    if undo and wait:
        raise typer.BadParameter("there is nothing to wait for", param_hint="--wait")

    def is_empty(found: "DrainStatus") -> bool:
        return found.read_out if ignore_unread else found.empty

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        found = admin.drain_broker(name, drain=not undo)
        until = time.monotonic() + wait
        while not undo and not is_empty(found) and time.monotonic() < until:
            time.sleep(LOOK_S)
            found = admin.drain_broker(name)
    emit(found, output, columns=COLUMNS, rows=[row(found, empty=is_empty(found))])
    if undo:
        return
    if found.unread:
        topics = ", ".join(f"{topic} ({count})" for topic, count in found.unread.items())
        note(f"no group reads these topics there, with so many messages: {topics}")
    if is_empty(found):
        note(f"{name} is empty: all groups have all of its messages")
    elif wait:
        note(f"whimbrel: {name} is not empty after {wait:g} s")
        raise typer.Exit(1)


def row(found: "DrainStatus", *, empty: bool) -> tuple[object, ...]:
    yes = {True: "yes", False: "no"}
    return (
        found.broker_name,
        yes[found.drained],
        found.topics,
        found.undelivered,
        found.in_flight,
        found.delayed,
        found.open_transactions,
        yes[empty],
    )

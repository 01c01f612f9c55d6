"""`whimbrel broker forget`: the other brokers let go of one that never comes back."""

from typing import Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note

__all__ = ["FORGET_EXAMPLES", "forget"]

FORGET_EXAMPLES = examples("whimbrel broker forget broker-b")

COLUMNS = ("broker", "topics whose message groups moved")


def forget(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Broker name of the one that is gone.")],
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Let go of a broker that never comes back: message groups move to the queues of the others.

    Refused while the broker, or a slave of it, is registered. The command may be repeated.
    """
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        moved = admin.forget_broker(name)
    rows = [(broker, ", ".join(topics)) for broker, topics in sorted(moved.items())]
    emit({"forgotten": name, "moved": moved}, output, columns=COLUMNS, rows=rows)
    topics = sorted({topic for found in moved.values() for topic in found})
    if topics:
        note(f"{name} is let go of; message groups have moved in: {', '.join(topics)}")
    else:
        note(f"{name} was let go of before: nothing has moved")

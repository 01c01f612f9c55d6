"""`whimbrel broker forget`: the other brokers let go of one that never comes back."""

from typing import Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note

__all__ = ["FORGET_EXAMPLES", "forget"]

FORGET_EXAMPLES = examples(
    "whimbrel broker forget broker-b",
    "whimbrel broker forget broker-a --member 2      a slave of it that never comes back",
)

COLUMNS = ("broker", "topics whose message groups moved")


def forget(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Broker name of the one that is gone.")],
    only: Annotated[
        int | None,
        typer.Option(
            "--member", min=1, help="This slave or member of it alone, by its id.", show_default=False
        ),
    ] = None,
    before: Annotated[int | None, typer.Option("--id", min=1, hidden=True)] = None,  # as it was named before
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Let go of a broker that never comes back: message groups move to the queues of the others.

    Nameservers no longer tell it as absent, so `whimbrel spark` jobs read what is there without it.

    Refused while the broker, or a slave of it, is registered. The command may be repeated. With --member only
    the nameservers let go, of one slave or member: `whimbrel health` misses it no longer.
    """
    from whimbrel.client import sync

    only = before if only is None else only
    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        if only is not None:
            admin.forget_member(name, only)
            emit({"forgotten": name, "id": only}, output, columns=("broker", "id"), rows=[(name, only)])
            note(f"broker {only} of {name} is no longer missed")
            return
        moved = admin.forget_broker(name)
    rows = [(broker, ", ".join(topics)) for broker, topics in sorted(moved.items())]
    emit({"forgotten": name, "moved": moved}, output, columns=COLUMNS, rows=rows)
    topics = sorted({topic for found in moved.values() for topic in found})
    if topics:
        note(f"{name} is let go of; message groups have moved in: {', '.join(topics)}")
    else:
        note(f"{name} is let go of; no message group has moved")

"""`whimbrel recall`: a message that waits for its time is never delivered."""

from typing import Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit

__all__ = ["RECALL_EXAMPLES", "recall"]

RECALL_EXAMPLES = examples(
    "whimbrel recall reminders djEgcmVtaW5kZXJzIGJyb2tlci1hIDE3OTUzMzY1MTcwMDEgMDFGQw=="
)


def recall(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name.")],
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="As `whimbrel send` has printed it.")],
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Take a delayed message back, before it is due; doing so twice is no error."""
    from whimbrel.client import sync

    with sync.Producer(resolve_endpoint(endpoint), topics=[topic]) as producer:
        message_id = producer.recall(topic, handle)
    emit({"recalled": message_id}, output, columns=("recalled message id",), rows=[(message_id,)])

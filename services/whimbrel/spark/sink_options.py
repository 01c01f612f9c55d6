"""What can be set on a write of `format("whimbrel")`, and which columns it takes; all checked at planning.

    delivery      each message
    atLeastOnce   is acknowledged before its task ends; a task that is run again sends all of its rows again
    idempotent    has MQ_SPARK_ID as well, the same in every try: queryId:batchId:partitionId:row of a stream,
                  runId:partitionId:row of a batch; or the value of `idColumn`
    preserve      is replayed as it was (`replay_writer.py`), so that no try stores a message again

MQ_SPARK_ID is the same only if the rows of a partition come in the same order in each try, which a shuffle
without a sort does not give. `idColumn` needs no order.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from whimbrel.spark.options import SPARKS, OptionError, OptionValues

__all__ = ["ID_PROPERTY", "PRESERVED_COLUMNS", "SEND_COLUMNS", "SinkOptions", "check_columns", "parse_sink"]

ID_PROPERTY = "MQ_SPARK_ID"
BATCH_BYTES, BATCH_BYTES_MAX = 1 << 20, 16 << 20
IN_FLIGHT, IN_FLIGHT_MAX = 4, 64
NAMES = (
    "servers", "topic", "delivery", "batchBytes", "maxInFlight", "idColumn", "runId", "preserve", "brokers",
)  # fmt: skip

TEXT = ("string",)
NUMBER = ("tinyint", "smallint", "int", "bigint")
BYTES = ("binary", "string")
# Columns and the types they may have. Columns of a read that only say where a message was are not accepted.
SEND_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": BYTES,
    "topic": TEXT,
    "keys": ("string", "array<string>"),
    "tags": TEXT,
    "queueId": NUMBER,
    "messageGroup": TEXT,
    "deliveryTimestamp": ("timestamp", "bigint"),
    "properties": ("map<string,string>",),
    "flag": NUMBER,
}
PRESERVED_COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": TEXT,
    "brokerName": TEXT,
    "queueId": ("int",),
    "queueOffset": ("bigint",),
    "msgId": TEXT,
    "bornTimestamp": ("timestamp",),
    "bornHost": TEXT,
    "flag": ("int",),
    "sysFlag": ("int",),
    "propertiesText": ("binary",),
    "body": ("binary",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write, checked.

    Attributes:
        servers: nameservers, HOST:PORT.
        topic: for all rows; empty: that of each row.
        batch_bytes: most bytes of a send; a larger message is sent alone.
        in_flight: sends of a task that are in flight at a time; to one queue one at a time.
        id_column: identifies each row, for `idempotent`; empty: its number in the partition does.
        run_id: of a batch.
        brokers: with preserve, the source's brokers and those of the target.
    """

    servers: tuple[str, ...]
    topic: str = ""
    delivery: Literal["atLeastOnce", "idempotent"] = "atLeastOnce"
    batch_bytes: int = BATCH_BYTES
    in_flight: int = IN_FLIGHT
    id_column: str = ""
    run_id: str = ""
    preserve: bool = False
    brokers: tuple[tuple[str, str], ...] = ()


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a write.

    Raises:
        OptionError: one is unknown, wrong, or contradicts another one.
    """
    values = {name.lower(): text for name, text in given.items() if name.lower() not in SPARKS}
    known = {name.lower(): name for name in NAMES}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(NAMES)}"
            raise OptionError(f"option {name}: a write has no such option{hint}")
    read = OptionValues(values)
    servers = read.servers()
    if not servers:
        raise OptionError('option servers: a write needs it, as in .option("servers", "127.0.0.1:8081")')
    preserve = read.truth("preserve", default=False)
    options = SinkOptions(
        servers=servers,
        topic=read.text("topic"),
        delivery=delivery_of(read),
        batch_bytes=between(read, "batchBytes", BATCH_BYTES, BATCH_BYTES_MAX),
        in_flight=between(read, "maxInFlight", IN_FLIGHT, IN_FLIGHT_MAX),
        id_column=read.text("idColumn"),
        run_id=read.text("runId"),
        preserve=preserve,
        brokers=pairs_of(read.text("brokers")),
    )
    check_together(options, values, streaming=streaming)
    return options


def check_together(options: SinkOptions, values: Mapping[str, str], *, streaming: bool) -> None:
    """Raise OptionError for options that exclude each other."""
    idempotent = options.delivery == "idempotent"
    if options.preserve and "delivery" in values:
        raise OptionError(
            "options delivery, preserve: messages that are put back are stored once; leave delivery out"
        )
    if options.brokers and not options.preserve:
        raise OptionError("option brokers: it has a meaning with preserve=true only")
    if options.id_column and not idempotent:
        raise OptionError("option idColumn: it has a meaning with delivery=idempotent only")
    if streaming and options.run_id:
        raise OptionError("option runId: a stream has an id of its own; leave it out")
    if options.run_id and not idempotent:
        raise OptionError("option runId: it has a meaning with delivery=idempotent only")
    if idempotent and not streaming and not options.run_id and not options.id_column:
        raise OptionError(
            "option runId: delivery=idempotent of a batch needs it, the same at each try of the batch and no"
            ' other\'s, as in .option("runId", "import-2026-11-21"); or idColumn'
        )


def delivery_of(read: OptionValues) -> Literal["atLeastOnce", "idempotent"]:
    """Return the delivery.

    Raises:
        OptionError: there is no such delivery, or not yet.
    """
    words = {"atleastonce": "atLeastOnce", "idempotent": "idempotent", "transactional": "transactional"}
    value = words.get(read.text("delivery").lower() or "atleastonce")
    if value is None:
        raise OptionError(f"option delivery: {read.text('delivery')!r} is neither atLeastOnce nor idempotent")
    if value == "transactional":
        raise OptionError(
            "option delivery: the sink sends no transactions; idempotent lets consumers leave out what they"
            " have seen"
        )
    return cast(Literal["atLeastOnce", "idempotent"], value)


def between(read: OptionValues, name: str, default: int, most: int) -> int:
    """Return a number from 1 to `most`."""
    value = read.number(name, default)
    if not 1 <= value <= most:
        raise OptionError(f"option {name}: {value} is not in 1 to {most}")
    return value


def pairs_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return SOURCE=TARGET,... as pairs."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    if any(not source or not target for source, _, target in pairs):
        raise OptionError(f"option brokers: {text!r} is not of the form SOURCE=TARGET,...")
    return tuple((source, target) for source, _, target in pairs)


def check_columns(columns: Sequence[tuple[str, str]], options: SinkOptions) -> None:
    """Raise OptionError unless rows with these columns (name, type) can be written."""
    known = dict(PRESERVED_COLUMNS if options.preserve else SEND_COLUMNS)
    if options.id_column:
        known.setdefault(options.id_column, (*TEXT, *NUMBER))
    given = dict(columns)
    for name, kind in columns:
        if name not in known:
            raise OptionError(
                f"column {name}: a write has no use for it; select what is to be sent of {', '.join(known)}"
            )
        if kind not in known[name]:
            raise OptionError(f"column {name}: it is of type {kind}, not {' or '.join(known[name])}")
    needed = list(PRESERVED_COLUMNS) if options.preserve else ["body"]
    if options.id_column:
        needed.append(options.id_column)
    if not options.topic:
        needed.append("topic")
    missing = [name for name in needed if name not in given]
    if missing:
        raise OptionError(
            f"column {', '.join(dict.fromkeys(missing))}: a write needs it"
            + ("" if "topic" not in missing else "; or the option topic")
            + ("; read with properties=raw, decompress=false, and name the properties propertiesText"
               if options.preserve else "")
        )  # fmt: skip

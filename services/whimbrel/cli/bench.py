"""`whimbrel bench`: sends, receives, and the way of a message to a consumer's handler, measured.

It makes a topic of its own unless one is named, and leaves it; nothing else is changed. What it measures is
this cluster from this machine, which shares the cores with it: docs/benchmarks.md compares. `send` is made by
the compiled lane where that is on (`send_bench.py`), and says whether client or broker was the limit; the
others are made by our client library.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note
from whimbrel.model.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from whimbrel.cli.load import Plan, Tally

__all__ = ["app"]

app = group("Measure sends, receives, and the way of a message from producer to consumer.")

TOPIC, E2E_TOPIC = "whimbrel-bench", "whimbrel-bench-e2e"
GROUP = "whimbrel-bench"
SECONDS = 10.0  # without --count and --seconds
BATCH_MAX = 1000
RECEIVE_MAX = 32  # that brokers give at once
E2E_HEADER_BYTES = 16

CountOption = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="Messages in all.", show_default=False)
]
SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--seconds", min=0.1, help=f"For how long. Without --count: {SECONDS:g}.", show_default=False
    ),
]
SizeOption = Annotated[int, typer.Option("--size", min=1, max=BODY_BYTES_MAX, help="Bytes of a body.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, max=1024, help="Requests under way at a time.")
]

Work = Callable[["Plan", "Tally"], Coroutine[Any, Any, None]]


@app.command(
    epilog=examples(
        "whimbrel bench send",
        "whimbrel bench send orders --count 100000 --size 1024 --concurrency 16",
        "whimbrel bench send --batch 32 -o json",
    )
)
def send(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Topic name.")] = TOPIC,
    count: CountOption = None,
    seconds: SecondsOption = None,
    size: SizeOption = 100,
    concurrency: ConcurrencyOption = 8,
    batch: Annotated[int, typer.Option(min=1, max=BATCH_MAX, help="Messages in one request.")] = 1,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Send messages: how many a second, how long a request takes, and which side was the limit."""
    from whimbrel.cli.load import Plan
    from whimbrel.cli.send_bench import SendBench
    from whimbrel.machine import MACHINE

    address = resolve_endpoint(endpoint)
    plan = Plan(
        topic=topic,
        count=count,
        seconds=bound(count, seconds),
        size=size,
        concurrency=concurrency,
        batch=batch,
    )

    async def work(plan: "Plan", tally: "Tally") -> None:
        await make_topic(address, topic)
        cores = len(os.sched_getaffinity(0))
        bench = SendBench(address, plan, tally, MACHINE.lane, cores)
        try:
            await bench.run()
        finally:
            tally.sides = bench.sides()

    measure("send", ("send",), plan, work, output)


@app.command(
    epilog=examples(
        "whimbrel bench receive                          what `bench send` has sent",
        "whimbrel bench receive orders --count 100000",
        "whimbrel bench receive orders --group billing   from where the group is; it is done with them then",
    )
)
def receive(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Topic name.")] = TOPIC,
    own_group: Annotated[
        str,
        typer.Option(
            "--group",
            "-g",
            help=f"Group to receive as, from where it is. Default: {GROUP}, from the topic's beginning.",
            show_default=False,
        ),
    ] = "",
    count: CountOption = None,
    seconds: SecondsOption = None,
    concurrency: ConcurrencyOption = 8,
    batch: Annotated[
        int, typer.Option(min=1, max=RECEIVE_MAX, help="Messages in one request.")
    ] = RECEIVE_MAX,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Stop when none came for so many seconds.")
    ] = 5.0,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Receive and acknowledge messages: how many a second, and how long requests take."""
    from whimbrel.cli.load import Plan, receive_load
    from whimbrel.client import Consumer

    address = resolve_endpoint(endpoint)
    plan = Plan(
        topic=topic,
        count=count,
        seconds=bound(count, seconds),
        size=0,
        concurrency=concurrency,
        batch=batch,
        wait_s=wait,
    )

    async def work(plan: "Plan", tally: "Tally") -> None:
        if not own_group:
            await place_group(address, topic, "earliest")
        async with Consumer(address, own_group or GROUP, [topic]) as consumer:
            await receive_load(consumer, plan, tally)

    measure("receive", ("receive", "acknowledge"), plan, work, output)


@app.command(
    epilog=examples(
        "whimbrel bench e2e",
        "whimbrel bench e2e --concurrency 1 --seconds 30",
        "whimbrel bench e2e orders --size 1024 -o json",
    )
)
def e2e(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Topic name.")] = E2E_TOPIC,
    count: CountOption = None,
    seconds: SecondsOption = None,
    size: Annotated[
        int, typer.Option("--size", min=E2E_HEADER_BYTES, max=BODY_BYTES_MAX, help="Bytes of a body.")
    ] = 100,
    concurrency: ConcurrencyOption = 8,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Send messages and receive them: how long one takes to the handler of a consumer that waits for it."""
    from whimbrel.cli.load import Plan, end_to_end
    from whimbrel.client import Consumer, ConsumerOptions, Producer

    address = resolve_endpoint(endpoint)
    plan = Plan(
        topic=topic,
        count=count,
        seconds=bound(count, seconds),
        size=size,
        concurrency=concurrency,
        batch=1,
    )

    async def work(plan: "Plan", tally: "Tally") -> None:
        await make_topic(address, topic)
        await place_group(address, topic, "latest")
        options = ConsumerOptions(concurrency=2 * concurrency)
        async with Producer(address, topics=[topic]) as producer:
            async with Consumer(address, GROUP, [topic], options=options) as consumer:
                await end_to_end(producer, consumer, plan, tally)

    measure("e2e", ("send", "end to end"), plan, work, output)


def bound(count: int | None, seconds: float | None) -> float | None:
    """Return for how long to run: what is given, else a default where there is no other bound."""
    return SECONDS if count is None and seconds is None else seconds


def measure(operation: str, names: tuple[str, ...], plan: "Plan", work: Work, output: Format) -> None:
    """Run and print what was measured, also after Ctrl-C or an error.

    Raises:
        KeyboardInterrupt: it was interrupted.
        WhimbrelError: the cluster can't be used, or requests failed.
    """
    from whimbrel.cli.latencies import Latencies
    from whimbrel.cli.load import Tally
    from whimbrel.errors import ClientError

    tally = Tally({name: Latencies() for name in names})
    ended: BaseException | None = None
    try:
        asyncio.run(work(plan, tally))
    except BaseException as error:
        if not tally.messages:
            raise
        ended = error
    report = tally.report(operation, plan)
    emit(report, output, columns=COLUMNS, rows=rows_of(report), title=title_of(report))
    if tally.others:
        note(f"{tally.others} messages came that are not of this run")
    if ended is not None:
        raise ended
    if tally.errors:
        failed = ", ".join(f"{count} {reason}" for reason, count in tally.errors.items())
        raise ClientError(f"messages that failed: {failed}; the last error was: {tally.error}")


COLUMNS = ("request", "count", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")


def title_of(report: dict[str, Any]) -> list[str]:
    """Return what was done and how fast, and which side was the limit, where that was measured."""
    lines = [
        f"{report['operation']} {report['topic']}:"
        f" {report['messages']} messages in {report['seconds']:.2f} s",
        f"{report['messages_per_s']:.0f} a second, {report['mib_per_s']:.2f} MiB/s",
    ]
    if "limit_text" in report:
        lines.append(report["limit_text"])
        if why := report["why_not_lane"]:
            processes = report["client"]["processes"]
            many = "" if processes == 1 else f" in {processes} processes"
            lines.append(f"sent by our Python client{many}, because {why}")
    return lines


def rows_of(report: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (name, *(round(value, 2) if isinstance(value, float) else value for value in found.values()))
        for name, found in report["latency_ms"].items()
    ]


async def make_topic(address: str, topic: str) -> None:
    """Make the topic on every master that has it not."""
    from whimbrel.client import Admin
    from whimbrel.errors import AlreadyExists

    async with Admin(address) as admin:
        try:
            await admin.create_topic(topic)
        except AlreadyExists:
            return


async def place_group(address: str, topic: str, to: str) -> None:
    """Make our group where there is none, and move it on the topic."""
    from whimbrel.client import Admin
    from whimbrel.errors import AlreadyExists

    async with Admin(address) as admin:
        try:
            await admin.create_group(GROUP)
        except AlreadyExists:
            pass
        await admin.reset_offsets(GROUP, topic, to=to)

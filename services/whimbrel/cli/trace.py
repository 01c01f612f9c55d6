"""`whimbrel trace`: the spans of one message, from every process that handled it.

Spans are read from files of OTLP's JSON lines, as our processes (`trace_to = file:PATH`) and the file
exporter of an OpenTelemetry Collector write them, or from a viewer with version 3 of Jaeger's query API.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.endpoint import running_cluster
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note, plain
from whimbrel.errors import ClientError
from whimbrel.escapes import printable_lines

if TYPE_CHECKING:
    from whimbrel.cli.message_trace import MessageTrace, Span

__all__ = ["EXAMPLES", "trace"]

EXAMPLES = examples(
    "whimbrel dev --trace 1                         trace every message",
    "whimbrel trace 0102FC000000011F860B13710ACA6571FE",
    "whimbrel trace ID --from spans.jsonl --from ./traces",
    "whimbrel trace ID --from http://127.0.0.1:16686      a Jaeger's query port",
)
POLL_S = 0.2  # between two reads, with --wait
SOURCE_VARIABLE = "WHIMBREL_CLIENT_TRACE_FROM"


def trace(
    message_id: Annotated[
        str, typer.Argument(metavar="MESSAGE_ID", help="As `send` and `receive` print it.")
    ],
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="PATH|URL",
            envvar=SOURCE_VARIABLE,
            help="File or folder of OTLP JSON lines, or a Jaeger's address; may be repeated."
            " Default: those of the running `whimbrel dev`.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Seconds to wait for stages that are still on their way."
        ),
    ] = 2.0,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the way of one message: sent, appended, flushed, replicated, acknowledged, received."""
    from whimbrel.cli import message_trace

    readers = [reader(source) for source in sources or [default_source()]]
    deadline = time.monotonic() + wait
    while True:
        spans = [span for read in readers for span in read()]
        found = message_trace.trace_of(message_id, spans)
        if (found is not None and not found.missing) or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    if found is None:
        raise ClientError(
            f"none of {len(spans)} spans is about message {message_id}: was it sampled (the broker's"
            " --trace-ratio, or a sampled context from the client), and is its file among those read?"
        )
    if output is not Format.TABLE:
        emit([plain(span) for span in found.spans], output, columns=(), rows=())
        hint(found)
        return
    sys.stdout.write(printable_lines(message_trace.lines(found)))
    hint(found)


def hint(found: "MessageTrace") -> None:
    """Print which spans are missing, and why they may be."""
    if found.root is None:
        note("the span in which it was created is not here: its client reports to somewhere else, if at all")
    if found.without_slaves:
        note("no slave was connected when it was stored: its master alone has it, unless one came since")
    if found.missing:
        note(f"no span yet of: {', '.join(found.missing)}")


def default_source() -> str:
    """Return the folder of spans of the running `whimbrel dev`.

    Raises:
        ClientError: none runs, or it does not trace.
    """
    cluster = running_cluster()
    if cluster is None:
        raise ClientError(
            f"where are the spans? Name a file, a folder or a Jaeger with --from or {SOURCE_VARIABLE},"
            " or start `whimbrel dev --trace 1`"
        )
    if not cluster.trace_ratio:
        raise ClientError("the running `whimbrel dev` does not trace; start it with --trace 1")
    return str(cluster.traces)


def reader(source: str) -> "Callable[[], Sequence[Span]]":
    """Return a function that returns all spans of a source; each call reads new ones."""
    if source.startswith(("http://", "https://")):
        from whimbrel.cli.jaeger import JaegerReader

        return JaegerReader(source)
    return FileReader(Path(source))


class FileReader:
    """Reads a file, or all `*.jsonl` and rotated `*.jsonl.1` of a folder, continuing where it stopped."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise ClientError(f"{path}: no such file or folder")
        self.path = path
        self.positions: dict[Path, int] = {}
        self.spans: list[Span] = []

    def __call__(self) -> "Sequence[Span]":
        """Return all spans that are there by now."""
        for path in self.files():
            self.spans += self.new_in(path)
        return self.spans

    def files(self) -> Iterator[Path]:
        """Yield the files."""
        if not self.path.is_dir():
            yield self.path
            return
        yield from sorted((*self.path.glob("*.jsonl.1"), *self.path.glob("*.jsonl")))

    def new_in(self, path: Path) -> "Iterator[Span]":
        """Yield the spans of lines that were not read yet; an incomplete line is left for the next call."""
        from whimbrel.cli.message_trace import spans_of

        with path.open("rb") as file:
            file.seek(self.positions.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.positions[path] = self.positions.get(path, 0) + len(line)
                if line.strip():
                    yield from spans_of(parsed(line, path))


def parsed(line: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        ClientError: the line is no OTLP JSON.
    """
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict) or "resourceSpans" not in value:
        raise ClientError(f"{path} does not hold OTLP traces as JSON lines: {line[:60]!r}")
    return value

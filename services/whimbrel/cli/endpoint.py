"""Finds the cluster of a command: `--endpoint`, else WHIMBREL_ENDPOINT, else the running `whimbrel dev`.

`whimbrel dev` writes `cluster.json` into its directory once the cluster is ready. A file left by one that was
killed is recognized by the nameserver's process id, which is not alive.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from whimbrel.errors import ClientError
from whimbrel.telemetry import CLIENT_SERVICE, check_trace_target

__all__ = [
    "ENDPOINT_VARIABLE",
    "EndpointOption",
    "RunningCluster",
    "default_dev_dir",
    "resolve_endpoint",
    "running_cluster",
    "traced",
]

ENDPOINT_VARIABLE = "WHIMBREL_ENDPOINT"
TRACE_VARIABLE = "WHIMBREL_CLIENT_TRACE_TO"
DEV_DIR_VARIABLE = "WHIMBREL_DEV_DIR"
CLUSTER_FILE = "cluster.json"

EndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        metavar="HOST:PORT",
        help=f"Nameserver to ask. Default: {ENDPOINT_VARIABLE}, else that of the running `whimbrel dev`.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """A cluster that `whimbrel dev` runs."""

    directory: Path
    endpoint: str
    processes: tuple[Mapping[str, Any], ...]
    trace_ratio: float

    @property
    def traces(self) -> Path:
        """The folder into which its processes write their spans."""
        return self.directory / "traces"


def default_dev_dir() -> Path:
    """Return the default directory of `whimbrel dev`."""
    chosen = os.environ.get(DEV_DIR_VARIABLE)
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state and Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "whimbrel" / "dev"


def running_cluster(directory: Path | None = None) -> RunningCluster | None:
    """Return the cluster that runs in a directory, by default the default one; None if there is none."""
    directory = directory or default_dev_dir()
    try:
        content = json.loads((directory / CLUSTER_FILE).read_text())
        cluster = RunningCluster(
            directory,
            content["endpoint"],
            tuple(content["processes"]),
            float(content.get("trace_ratio", 0)),  # an older version's file lacks it
        )
        nameservers = [int(item["pid"]) for item in cluster.processes if item["role"] == "nameserver"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cluster if any(alive(pid) for pid in nameservers) else None


def resolve_endpoint(given: str) -> str:
    """Return the access point to use; `given` is the value of `--endpoint`, "" without it.

    Raises:
        ClientError: no endpoint is given, and no `whimbrel dev` runs.
    """
    chosen = given or os.environ.get(ENDPOINT_VARIABLE, "")
    if chosen:
        return chosen
    cluster = running_cluster()
    if cluster is None:
        raise ClientError(
            "no cluster to talk to: start one with `whimbrel dev`,"
            f" or name one with --endpoint HOST:PORT or {ENDPOINT_VARIABLE}"
        )
    return cluster.endpoint


@contextlib.contextmanager
def traced(endpoint: str) -> Iterator[None]:
    """Trace the command while the block runs, if tracing is on.

    It is if WHIMBREL_CLIENT_TRACE_TO is set, or if the command talks to a running `whimbrel dev` that traces.
    """
    target, ratio = os.environ.get(TRACE_VARIABLE, ""), 1.0
    if not target and not endpoint and not os.environ.get(ENDPOINT_VARIABLE):
        cluster = running_cluster()
        if cluster is not None and cluster.trace_ratio:
            target, ratio = f"file:{cluster.traces / 'cli.jsonl'}", cluster.trace_ratio
    if not target:
        yield
        return
    try:
        check_trace_target(target)
    except ValueError as error:
        raise ClientError(str(error).replace("trace_to", TRACE_VARIABLE)) from error
    from whimbrel.tracing import tracing_to

    with tracing_to(target, CLIENT_SERVICE, ratio=ratio):
        yield


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Finds the cluster of a command. The first of these that names one decides:

    --endpoint HOST:PORT, or --profile NAME     on the command line; not both
    WHIMBREL_ENDPOINT, else WHIMBREL_PROFILE    for a shell or a script
    the profile in use                          `whimbrel profile use NAME`: who chose one means it
    the running `whimbrel dev`                  also as the profile `dev`

What is named and can't be had is an error: the next one is not tried in its place.

`whimbrel dev` writes `cluster.json` into its directory once the cluster is ready. A file left by one that was
killed is recognized by the nameserver's process id, which is not alive.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from whimbrel.cli.profiles import DEV, checked_endpoint, complete_name, load, profiles_file
from whimbrel.errors import ClientError
from whimbrel.telemetry import CLIENT_SERVICE, check_trace_target

__all__ = [
    "DEV_DIR_VARIABLE",
    "ENDPOINT_HELP",
    "ENDPOINT_VARIABLE",
    "PROFILE_VARIABLE",
    "EndpointOption",
    "Given",
    "NoneRuns",
    "RunningCluster",
    "Target",
    "default_dev_dir",
    "naming_origin",
    "profile_parameter",
    "resolve",
    "resolve_endpoint",
    "running_cluster",
    "traced",
]

ENDPOINT_VARIABLE = "WHIMBREL_ENDPOINT"
PROFILE_VARIABLE = "WHIMBREL_PROFILE"
TRACE_VARIABLE = "WHIMBREL_CLIENT_TRACE_TO"
DEV_DIR_VARIABLE = "WHIMBREL_DEV_DIR"
CLUSTER_FILE = "cluster.json"
ENDPOINT_HELP = (
    f"Nameserver to ask. Default: {ENDPOINT_VARIABLE}, the profile in use, or the running `whimbrel dev`."
)

EndpointOption = Annotated[
    str,
    typer.Option(
        "--endpoint",
        metavar="HOST:PORT",
        help=ENDPOINT_HELP,
        show_default=False,
    ),
]


class NoneRuns(ClientError):
    """The cluster of a `whimbrel dev` is meant, and none runs: one may be starting."""


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


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster of a command.

    Attributes:
        endpoint: HOST:PORT, or several joined by `;`.
        origin: what named it, as a person would say it.
        cluster: that of `whimbrel dev`, if it is what was found.
    """

    endpoint: str
    origin: str
    cluster: RunningCluster | None = None


class Given:
    """What the command line that runs has named, what was found, and told; a process runs one at a time.

    `--profile` comes here, so that commands need not hand it on; each command line sets it anew.
    """

    profile = ""
    target: Target | None = None
    told: ClassVar[set[str]] = set()  # broker groups of which it was said that they are away


def default_dev_dir(*, chosen: str | None = None) -> Path:
    """Return the default directory of `whimbrel dev`; `chosen` stands for the variable's value."""
    chosen = os.environ.get(DEV_DIR_VARIABLE) if chosen is None else chosen
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


def resolve(given: str, *, profile: str = "") -> Target:
    """Return the cluster to talk to; `given` and `profile` are the values of the options, "" without.

    Raises:
        NoneRuns: none is named, or `dev` is, and no `whimbrel dev` runs.
        ClientError: what is named can't be had.
    """
    environment = os.environ
    if given and profile:
        raise ClientError("--endpoint and --profile exclude each other: name one")
    if given:
        return Target(checked_endpoint(given, "--endpoint"), "--endpoint")
    if profile:
        return of_profile(profile, "--profile")
    if chosen := environment.get(ENDPOINT_VARIABLE, ""):
        return Target(checked_endpoint(chosen, ENDPOINT_VARIABLE), ENDPOINT_VARIABLE)
    if named := environment.get(PROFILE_VARIABLE, ""):
        return of_profile(named, PROFILE_VARIABLE)
    if current := load(profiles_file(environment)).current:
        return of_profile(current, "the profile in use")
    return of_dev(
        "no cluster to talk to: start one with `whimbrel dev`,"
        f" or name one with --endpoint HOST:PORT, {ENDPOINT_VARIABLE} or `whimbrel profile`"
    )


def of_profile(name: str, source: str) -> Target:
    """Return the cluster of a profile; `source` says in errors what named it."""
    if name == DEV:
        return of_dev(f"{source}: the profile {DEV} is the running `whimbrel dev`, and none runs: start one")
    profiles = load(profiles_file(os.environ))
    try:
        return Target(profiles.get(name).endpoint, f"profile {name}")
    except ClientError as error:
        raise ClientError(f"{source}: {error}") from error


def of_dev(lacking: str) -> Target:
    """Return the cluster of the running `whimbrel dev`; `lacking` is the error when there is none."""
    cluster = running_cluster()
    if cluster is None:
        raise NoneRuns(lacking)
    return Target(cluster.endpoint, "the running `whimbrel dev`", cluster)


def resolve_endpoint(given: str) -> str:
    """Return the access point to use; `given` is the value of `--endpoint`, "" without it.

    Raises:
        ClientError: no endpoint is given, and no `whimbrel dev` runs.
    """
    Given.target = None
    Given.told.clear()
    Given.target = resolve(given, profile=Given.profile)
    return Given.target.endpoint


def naming_origin(text: str) -> str:
    """Return an error's text with what named the address in it, unless the command line did."""
    target = Given.target
    if target is None or target.origin == "--endpoint":
        return text
    for address in target.endpoint.split(";"):
        if address in text:
            return text.replace(address, f"{address} ({target.origin})", 1)
    return text


def profile_parameter() -> Any:
    """Return the option `--profile` for a command that has `--endpoint`; `resolve_endpoint` heeds it."""

    def choose(name: str) -> str:
        Given.profile = name
        return name

    def holder(
        profile: Annotated[
            str,
            typer.Option(
                "--profile",
                metavar="NAME",
                help="The cluster of this name; see `whimbrel profile --help`.",
                callback=choose,
                autocompletion=complete_name,
                expose_value=False,
                show_default=False,
            ),
        ] = "",
    ) -> None:
        pass

    app = typer.Typer(add_completion=False)
    app.command()(holder)
    return typer.main.get_command(app).params[0]


@contextlib.contextmanager
def traced(endpoint: str) -> Iterator[None]:
    """Trace the command while the block runs, if tracing is on.

    It is if WHIMBREL_CLIENT_TRACE_TO is set, or if the command talks to a running `whimbrel dev` that traces.
    """
    target, ratio = os.environ.get(TRACE_VARIABLE, ""), 1.0
    if not target:
        cluster = resolve(endpoint, profile=Given.profile).cluster
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

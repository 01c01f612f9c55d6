"""`whimbrel health`: one line a component, and an exit code for scripts.

Each nameserver of the endpoint is asked by itself, one after the other; the brokers that the first one knows
which answers are asked all at once. Every question has a timeout of three seconds, so a look takes at most
that for each nameserver that is silent, and once more for the brokers.
"""

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from whimbrel.cli.endpoint import EndpointOption, NoneRuns, resolve_endpoint
from whimbrel.cli.lazy import examples
from whimbrel.cli.output import Format, OutputOption, emit, note
from whimbrel.errors import WhimbrelError
from whimbrel.model.health import Check, broker_checks, nameserver_check
from whimbrel.model.route import parse_endpoints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from whimbrel.client import Cluster, sync

__all__ = ["EXAMPLES", "health"]

EXAMPLES = examples(
    "whimbrel health",
    "whimbrel health --wait 30 && run-my-tests",
    "whimbrel health --endpoint ns1:8081,ns2:8081 -o json",
)
COLUMNS = ("component", "health", "state")
POLL_S = 0.25  # between two looks of --wait
WAIT_S_MAX = 86_400.0


def health(
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0.0,
            max=WAIT_S_MAX,
            help="Look again until all is well, for so long at most.",
        ),
    ] = 0.0,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Tell whether all components of the cluster work; exit code 0 if they do, else 1."""
    from whimbrel.client import sync

    deadline = time.monotonic() + wait
    addresses = [str(address) for address in parse_endpoints(found_endpoint(endpoint, deadline))]
    with ExitStack() as stack:
        admins = {address: stack.enter_context(sync.Admin(address)) for address in addresses}
        while True:
            checks = look(admins)
            healthy = all(check.healthy for check in checks)
            left = deadline - time.monotonic()
            if healthy or left <= 0:
                break
            time.sleep(min(POLL_S, left))
    show(checks, output)
    if not healthy:
        raise typer.Exit(1)


def found_endpoint(given: str, deadline: float) -> str:
    """Return the endpoint; a `whimbrel dev` that has just been started shows its own only once it is ready.

    Raises:
        NoneRuns: there is none until the deadline, in seconds of the monotonic clock.
        ClientError: what is named can't be had; that is not waited for.
    """
    while True:
        try:
            return resolve_endpoint(given)
        except NoneRuns:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
            time.sleep(min(POLL_S, left))


def look(admins: "Mapping[str, sync.Admin]") -> list[Check]:
    """Return the checks of nameservers, then of brokers as the first nameserver knows them that answers."""
    answers: dict[str, Cluster | WhimbrelError] = {}
    for address, admin in admins.items():
        try:
            answers[address] = admin.cluster()
        except WhimbrelError as error:
            answers[address] = error
    others = [
        one for answer in answers.values() if not isinstance(answer, WhimbrelError) for one in answer.brokers
    ]
    checks = [nameserver_check(address, answer, others) for address, answer in answers.items()]
    for address, answer in answers.items():
        if not isinstance(answer, WhimbrelError):
            views = admins[address].replication(answer.brokers)
            return checks + broker_checks(answer.brokers, views, answer.absent)
    return checks


def show(checks: "Sequence[Check]", output: Format) -> None:
    """Print the checks, and what to do about those that fail."""
    healthy = all(check.healthy for check in checks)
    rows = [(check.component, "ok" if check.healthy else "WRONG", check.state) for check in checks]
    emit({"healthy": healthy, "checks": checks}, output, columns=COLUMNS, rows=rows)
    for check in checks:
        if not check.healthy and check.advice:
            note(f"{check.component}: {check.advice}")
        if check.note:
            note(f"{check.component}: {check.note}")

"""What all tests share: what a run goes by; `measured`, whose lines stand in the summary of every run.

With `WHIMBREL_CLIENT_TRANSPORT=grpcio` our own clients call by that library, in the tests and in what they
start; tests of the mark `transport` are those that make a difference. With `WHIMBREL_TEST_LANE=off` nothing
uses the compiled lane; the mark for that is `lane`.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import hypothesis
import pytest

from whimbrel.lane import Lane
from whimbrel.machine import MACHINE

LINES = pytest.StashKey[list[str]]()

STORE_THREADS = {"queue-mark", "log-preallocate", "log-flush"}
CLIENTS = "WHIMBREL_CLIENT_TRANSPORT"
LANE = "WHIMBREL_TEST_LANE"
# What the compiled lane replaces is also tested without it, in CI; all tests are by `make test-lane`.
LANE_TESTS = (
    "tests/unit/store/",
    "tests/property/test_store_machine.py",
    "tests/integration/test_broker_conformance.py",
    "tests/integration/test_client.py",
    "tests/integration/test_damaged_log.py",
    "tests/integration/test_failover.py",
    "tests/integration/test_full_disk.py",
    "tests/integration/test_kill.py",
    "tests/integration/test_store_modes.py",
    "tests/integration/test_switching.py",
)
# Of these, the files in which nothing uses the lane: without it they would run the same code again.
SAME_WITHOUT_LANE = tuple(
    f"tests/unit/store/test_{name}.py"
    for name in (
        "columns_decoder",
        "columns_kinds",
        "columns_scan",
        "consumequeue",
        "cut_reader",
        "durable_names",
        "emptying",
        "epoch_file",
        "jsonconfig",
        "locking",
        "log_compare",
        "modes",
        "page_cells",
        "preallocation",
        "repair",
        "seal",
        "seam",
        "seat_file",
        "shared_page",
        "timer_files",
        "trace_scanner",
    )
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make scenarios` rewrite the dialogues of `tests/scenario`."""
    parser.addoption(
        "--rewrite", action="store_true", help="write what the dialogues of tests/scenario give now"
    )


def pytest_configure() -> None:
    """Let Hypothesis measure no time, as nothing asserts how long something took; take the lane's choice."""
    hypothesis.settings.register_profile("whimbrel", deadline=None)
    hypothesis.settings.load_profile("whimbrel")
    if lane := os.environ.get(LANE):
        os.environ["WHIMBREL_LANE"] = lane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs once more without the lane; refuse a mark that no run would follow."""
    for item in items:
        if item.get_closest_marker("transport") and item.get_closest_marker("slow"):
            raise pytest.UsageError(
                f"{item.nodeid} is slow, so it would never run by the other transport: take one mark away"
            )
        if item.nodeid.startswith(LANE_TESTS) and not item.nodeid.startswith(SAME_WITHOUT_LANE):
            item.add_marker(pytest.mark.lane)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """See that a test that is said to be the same without the lane does not use it."""
    if not item.nodeid.startswith(SAME_WITHOUT_LANE):
        return (yield)
    used: list[str] = []
    asked = Lane.active.fget  # type: ignore[attr-defined]

    def active(lane: Lane) -> bool:
        used.append(lane.choice)
        return bool(asked(lane))

    with patch.object(Lane, "active", property(active)):
        result = yield
    assert not used, f"{item.path.name} uses the lane: take it out of SAME_WITHOUT_LANE"
    return result


def pytest_report_header() -> str:
    """Name what the run goes by."""
    return f"clients call by: {os.environ.get(CLIENTS, 'native')}, lane: {MACHINE.lane}"


@pytest.fixture
def stub() -> Iterator[socket.socket]:
    """Give a socket that is not connected, for options to be set on."""
    with socket.socket() as found:
        yield found


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Give a function that takes a line (a seed, counts, seconds) for the end of the run."""

    def note(line: str) -> None:
        print(line)
        request.config.stash.setdefault(LINES, []).append(f"{request.node.name}: {line}")

    return note


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Find the module whose tests leave a store open: what follows may fail by it, in another module."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        left = [thread.name for thread in threading.enumerate() if thread.name in STORE_THREADS]
        assert not left, f"a test of {item.path.name} left a store open: {', '.join(left)}"
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the lines over, where this is one of several processes that share the tests (`-n`)."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["lines"] = session.config.stash.get(LINES, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the lines of such a process."""
    node.config.stash.setdefault(LINES, []).extend(getattr(node, "workeroutput", {}).get("lines", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the collected lines."""
    for line in terminalreporter.config.stash.get(LINES, []):
        terminalreporter.write_line(line)

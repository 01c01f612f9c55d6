"""What all tests share: `measured` collects lines that stand in the summary of every run."""

from collections.abc import Callable

import pytest

LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Give a function that takes a line (a seed, counts, seconds) for the end of the run."""

    def note(line: str) -> None:
        print(line)
        request.config.stash.setdefault(LINES, []).append(f"{request.node.name}: {line}")

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the collected lines."""
    for line in terminalreporter.config.stash.get(LINES, []):
        terminalreporter.write_line(line)

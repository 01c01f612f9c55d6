"""A store whose disk can fail, for the files that do not have a store of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.store.failed_syncs import RefusingMachine, opened_store
from whimbrel.store.master_store import MasterStore


@pytest.fixture
def machine() -> RefusingMachine:
    """A machine whose files fail when they are told to."""
    return RefusingMachine()


@pytest.fixture
def store(machine: RefusingMachine, tmp_path: Path) -> Iterator[MasterStore]:
    """A master's store on that machine, below `s`."""
    with opened_store(machine, tmp_path / "s") as found:
        yield found

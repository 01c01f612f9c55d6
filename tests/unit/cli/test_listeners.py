"""Who listens at an address of this machine, and how long its threads were on cores."""

import os
import socket
from unittest.mock import patch

import pytest

from whimbrel.cli import listeners
from whimbrel.cli.listeners import listening_processes
from whimbrel.cli.process_times import core_times


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_process_that_listens_is_found(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as sock:
        try:
            sock.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        port = sock.getsockname()[1]
        assert listening_processes(host, port) == []
        sock.listen()
        assert listening_processes(host, port) == [os.getpid()]
        assert listening_processes("192.0.2.1", port) == []  # which is not this machine
        with patch.object(listeners, "name_of", lambda pid: "docker-proxy"):
            assert listening_processes(host, port) == []
    assert listening_processes(host, port) == []


def test_a_process_has_times() -> None:
    before, after = core_times([os.getpid()]), core_times([os.getpid()])
    assert before is not None
    assert after is not None
    main = os.getpid()
    assert 0 < before[main][main][0] <= after[main][main][0]
    assert core_times([2**22 + 1]) is None
    assert core_times([]) == {}

"""Fetches and builds the programs of others, and earlier releases of ours, that tests start.

It is a program: `python -m support.systems.prepared`; with `--slow` it has those of slow tests as well.

Tests do so themselves where nobody has; beforehand it costs no test its time, and none is skipped because an
installation took longer than a quick test may wait for it. What can't be had is named; the tests that need it
say so again.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import pytest

import clients4.programs
import official.running
from support.cluster.earlier import released, releases
from support.http2 import echoing
from support.systems import h2spec, real_broker, sdk_programs
from support.systems.sdk_programs import Missing

__all__ = ["main"]

PROGRAMS: dict[str, Callable[[], object]] = {
    "RocketMQ 4.9.3": lambda: real_broker.resolved("4.9.3"),
    "RocketMQ 5.3.3": lambda: real_broker.resolved("5.3.3"),
    "RocketMQ's own tests": official.running.prepare,
    "the 4.x client in Java": lambda: clients4.programs.prepare("java-4.9.3"),
    "the SDK in Java": lambda: sdk_programs.prepare("java"),
    "the SDK in Go": lambda: sdk_programs.prepare("go"),
    "the SDK in Node.js": lambda: sdk_programs.prepare("nodejs"),
    "the echo client in Node.js": lambda: echoing.prepare("nodejs"),
    "h2spec": h2spec.prepare,
    **{f"whimbrel {version}": partial(released, version) for version in releases()},
}
OF_SLOW_TESTS: dict[str, Callable[[], object]] = {
    "the SDK in Rust": lambda: sdk_programs.prepare("rust", BUILD_S),
    "the echo client in C++": lambda: echoing.prepare("cpp"),
    "the echo client in Go": lambda: echoing.prepare("go"),
    "the echo client in Java": lambda: echoing.prepare("java"),
}
BUILD_S = 600.0  # of Rust, with all crates
NOT_HAD = (Missing, AssertionError, OSError, subprocess.CalledProcessError, pytest.skip.Exception)


def main() -> None:
    """Prepare all that is asked for."""
    for name, prepare in (PROGRAMS | (OF_SLOW_TESTS if "--slow" in sys.argv[1:] else {})).items():
        began = time.monotonic()
        try:
            prepare()
        except NOT_HAD as error:
            print(f"{name} is not to be had here: {error}", file=sys.stderr, flush=True)
        else:
            print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()

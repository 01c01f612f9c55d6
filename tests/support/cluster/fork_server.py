"""Starts our processes as forks of one that has imported them: half a second of CPU less for each start.

    server = ForkServer(PYTHON, environment)            # one for all tests of a process
    child = server.start("whimbrel.broker", ["--port", "0"], environment, log)
    child.pid, child.poll(), child.wait(20)             # as `subprocess.Popen`

The server is a program of its own, without threads (this file as `__main__`). It imports what the three
programs consist of, and forks for each request; the child gets a session, environment, arguments and log of
its own, and runs `python -m MODULE` from there on. Nothing of our code keeps state from its import on but
tables and caches that are empty then; `random` and hash seeds: the first is seeded anew by Python in each
child, the second is the same in all.

What a start by `exec` does besides, reading arguments by the interpreter and importing, is tested wherever a
process is started in another way: by `whimbrel dev`, in containers, of earlier versions, under strace. With
WHIMBREL_TEST_EXEC=1 all are started so.

The protocol is JSON lines over a socket: {"module", "arguments", "environment", "log"} is answered with
{"pid"}, {"reap": PID} with {"code"}, null while it runs.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["MODULES", "ForkServer", "Forked"]

MODULES = ("whimbrel.nameserver", "whimbrel.broker", "whimbrel.replicator")
IMPORTED = (
    "whimbrel.nameserver.program",
    "whimbrel.broker.program",
    "whimbrel.replicator.program",
    "whimbrel.rpc.server.native",
    "uvloop",
)
ANSWER_S = 30.0  # it answers at once; a machine may be busy
REAPED_S = 10.0


class Forked:
    """A child of the server, as far as tests use a `subprocess.Popen`."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self.server, self.pid = server, pid
        self.ended = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self.server.ask({"reap": self.pid})["code"]
            if self.returncode is not None:
                os.close(self.ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit code.

        Raises:
            TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            poll = select.poll()
            poll.register(self.ended, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"the child {self.pid}", timeout or 0.0)
        from support.waiting import until  # the server, which this file is as a program, has no such path

        # A tracer, strace for instance, is told of the end before the parent.
        until(lambda: self.poll() is not None, timeout=REAPED_S, what=f"the code of the child {self.pid}")
        assert self.returncode is not None
        return self.returncode


class ForkServer:
    """The server, as its client sees it; it ends with this process."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self.child = subprocess.Popen(
            [python, __file__, str(theirs.fileno())],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(ANSWER_S)
        self.stream = ours.makefile("rw", encoding="utf-8")
        ours.close()
        self.lock = threading.Lock()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request; return the answer."""
        with self.lock:
            self.stream.write(json.dumps(request) + "\n")
            self.stream.flush()
            line = self.stream.readline()
        assert line, "the server of forks has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Forked:
        """Start a program; what it prints is appended to the log."""
        request = {"module": module, "arguments": arguments, "environment": environment, "log": str(log)}
        return Forked(self, self.ask(request)["pid"])


def exit_code(pid: int) -> int | None:
    """Return how a child has ended; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def become(request: Mapping[str, Any]) -> None:
    """Make this process, which was just forked, look like one that was started for the request."""
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["module"], *request["arguments"]]


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Answer requests; return one in the child that was forked for it, None when the client has gone."""
    with connection, connection.makefile("rw", encoding="utf-8") as stream:
        for line in stream:
            request = json.loads(line)
            answer = {}
            if "reap" in request:
                answer["code"] = exit_code(request["reap"])
            else:
                answer["pid"] = os.fork()
                if not answer["pid"]:
                    return dict(request)
            stream.write(json.dumps(answer) + "\n")
            stream.flush()
    return None


def main(descriptor: int) -> None:
    """Serve, and run a program in each child."""
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # uvloop is not there on each system
            importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "what is forked has no threads"
    gc.collect()
    gc.freeze()
    request = serve(socket.socket(fileno=descriptor))
    if request is not None:
        become(request)
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())  # as `python -m` has it
    main(int(sys.argv[1]))

"""The handle of a test's cluster: starts it, kills and restores its processes, reads their logs.

What a process goes through:

    running ──kill──► down ──restart, restore──► running
       │ ──pause──► stopped ──resume, restart, restore──► running

`host.py` runs the cluster. A process that was killed is down because of its hold file
(`cli/supervisor.py`); where the processes are, and which of them is a new one, stands in `cluster.json`.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from whimbrel.testing.signals import send_signal

if TYPE_CHECKING:
    from whimbrel.client import Admin

__all__ = ["KEEP_FILE", "Cluster", "ClusterError"]

START_TIMEOUT_S = 60.0  # a build machine with all cores taken; an idle one needs less than a second
STOP_TIMEOUT_S = 30.0  # more than the host gives its processes before it kills them
GONE_TIMEOUT_S = 10.0  # for one process to end
LEADER_TIMEOUT_S = 15.0  # an election takes up to five seconds
RESTORE_TIMEOUT_S = 30.0  # a master that comes back waits up to 10 s for slaves that are said to live
POLL_S = 0.02
# Of a new store: a broker takes about 11 MB of disk, and the largest message fits, or a batch of 8 MiB.
LOG_FILE_SIZE = 8 * 1024 * 1024
LEASE_FILE_SIZE = 1024 * 1024
KEEP_FILE = Path("run") / "keep"  # the host leaves the directory when this is there
EXCERPT_LINES_MAX = 25  # of each process
EXCERPT_BYTES_MAX = 64 * 1024
LINE_CHARS_MAX = 300
HINT_CHARS_MAX = 80  # of a topic's name, which ends with eight more that make it fresh
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")

T = TypeVar("T")


class ClusterError(Exception):
    """The cluster could not be started, or not be brought to what was asked for; says why."""


class Cluster:
    """A nameserver, a master and any slaves, as processes; a context manager.

    Public: the keyword arguments, the attributes below, `start`, `close`, `kill`, `pause`, `resume`,
    `restart`, `restore`, `pid`, `store`, `log`, `leader`, `create_topic`, `create_group`, `new_topic`,
    `mark_logs` and `excerpts`.

    Attributes:
        endpoint: HOST:PORT of the nameserver, which clients take; "" before the start.
        directory: of stores and logs; below the directory for temporary files unless it was given.
        names: of the processes, as the calls below take them: `nameserver`, `master`, `master-replicator`,
            `slave-1`, `slave-1-replicator` and so on; with `replication="majority"` `member-1`,
            `member-1-replicator` and so on.
        keep: leave the directory at the end.
        disturbed: something was killed or paused, and has not been restored.
    """

    def __init__(
        self,
        *,
        slaves: int = 0,
        replication: Literal["sync", "async", "majority"] = "async",
        flush: Literal["sync", "async"] = "async",
        strict: bool = False,
        keep: bool = False,
        directory: Path | str | None = None,
        label: str = "",
    ) -> None:
        """Prepare; `start`, or the `with` statement, starts it.

        Args:
            slaves: how many.
            replication: `sync`: a send is answered when a slave has it; `majority`: when more than half of
                the brokers have it, and nobody sees it before.
            flush: `sync`: a send is answered when it is on the disk.
            strict: topics and groups must be created before they are used, as in production.
            keep: leave the directory with stores and logs at the end.
            directory: for stores and logs, instead of a fresh one; it is left at the end.
            label: part of the fresh directory's name.

        Raises:
            ValueError: these do not go together.
        """
        if replication == "sync" and not slaves:
            raise ValueError("replication='sync' needs a slave: Cluster(slaves=1, replication='sync')")
        if replication == "majority" and not slaves:
            raise ValueError("a majority needs slaves: Cluster(slaves=2, replication='majority')")
        self.slaves, self.replication, self.flush, self.strict = slaves, replication, flush, strict
        self.keep = keep or directory is not None
        self.given, self.label = directory, label
        self.directory = Path(directory or os.devnull)
        self.endpoint = ""
        self.names: tuple[str, ...] = ()
        self.host: subprocess.Popen[bytes] | None = None
        self.killed: set[str] = set()
        self.paused: set[str] = set()
        self.restarted = False  # a process is new, and its peers may not have found it yet
        self.marks: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<whimbrel cluster at {self.endpoint or '-'}, {self.slaves} slaves, in {self.directory}>"

    @property
    def disturbed(self) -> bool:
        """Whether something was killed, paused or restarted, and `restore` has not been called since."""
        return bool(self.killed or self.paused or self.restarted)

    # Start and end

    def start(self) -> Self:
        """Start all processes; return when the cluster takes messages.

        Raises:
            ClusterError: it could not be started, and why; nothing is left running.
        """
        if self.host is not None:
            raise ClusterError("this cluster runs already")
        label = f"{self.label}-" if self.label else ""
        self.directory = Path(self.given or tempfile.mkdtemp(prefix=f"whimbrel-{label}")).absolute()
        (self.directory / "run").mkdir(parents=True, exist_ok=True)
        self.settle_keep()
        self.host = subprocess.Popen(
            [sys.executable, "-P", "-m", "whimbrel.testing.host", self.described()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the tests, which end the cluster when they are done
        )
        try:
            said = self.first_words(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        if "endpoint" not in said:
            self.close()
            raise ClusterError(said.get("error", "the cluster's host ended without a word"))
        self.endpoint = said["endpoint"]
        self.names = tuple(self.processes())
        return self

    def described(self) -> str:
        """Return what the host is told."""
        return json.dumps(
            {
                "parent": os.getpid(),
                "options": {
                    "directory": str(self.directory),
                    "port": 0,
                    "slaves": self.slaves,
                    "replication": self.replication,
                    "flush": self.flush,
                    "auto_create": not self.strict,
                    "log_file_size": LOG_FILE_SIZE,
                    "lease_file_size": LEASE_FILE_SIZE,
                    "ephemeral": True,
                },
            }
        )

    def first_words(self, timeout_s: float) -> dict[str, str]:
        """Return what the host says once it is ready, or has failed; nothing when it ends without a word."""
        assert self.host is not None and self.host.stdout is not None
        if not select.select([self.host.stdout], [], [], timeout_s)[0]:
            return {"error": f"the cluster is not ready after {timeout_s:.0f} s"}
        line = self.host.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def close(self) -> None:
        """End all processes and remove the directory, unless it is to be kept; again does nothing."""
        host, self.host = self.host, None
        if host is None:
            return
        self.settle_keep()
        host.terminate()
        try:
            host.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            host.kill()  # the others are killed with it
            host.wait()
        assert host.stdout is not None
        host.stdout.close()
        if not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)
        self.endpoint, self.killed, self.paused, self.restarted = "", set(), set(), False

    def settle_keep(self) -> None:
        """Tell the host whether to leave the directory: it may have to decide that without us."""
        file = self.directory / KEEP_FILE
        if not self.keep:
            file.unlink(missing_ok=True)
        elif file.parent.is_dir():
            file.touch()

    # The processes

    def processes(self) -> dict[str, dict[str, Any]]:
        """Return the processes by name, as the host describes them."""
        content = json.loads((self.directory / "cluster.json").read_text(encoding="utf-8"))
        return {entry["name"]: entry for entry in content["processes"]}

    def entry(self, name: str) -> dict[str, Any]:
        """Return a process's description.

        Raises:
            ClusterError: the cluster does not run.
            ValueError: no process has that name.
        """
        if self.host is None or self.host.poll() is not None:
            raise ClusterError("this cluster does not run")
        if name not in self.names:
            raise ValueError(f"no process is called {name!r}; there are {', '.join(self.names)}")
        return self.processes()[name]

    def pid(self, name: str) -> int:
        """Return a process's id."""
        return int(self.entry(name)["pid"])

    def leader(self, timeout_s: float = LEADER_TIMEOUT_S) -> str:
        """Return the name of the broker that takes messages; the members of a group elect it.

        Raises:
            ClusterError: none does in that time.
        """
        from whimbrel.store.shared_page import SharedPage

        deadline = time.monotonic() + timeout_s
        brokers = [name for name in self.names if name != "nameserver" and not name.endswith("-replicator")]
        while time.monotonic() < deadline:
            for name in brokers:
                page = SharedPage.snapshot(self.store(name))
                lives = name not in self.killed and name not in self.paused
                if lives and page is not None and page.writable and page.broker_pid == self.pid(name):
                    return name
            time.sleep(POLL_S)
        raise ClusterError(f"no broker takes messages: not within {timeout_s:g} s")

    def store(self, name: str) -> Path:
        """Return the store directory of a broker or replicator."""
        return Path(self.entry(name)["store"])

    def log(self, name: str) -> Path:
        """Return the file of a process's log."""
        self.entry(name)
        return self.directory / "logs" / f"{name}.log"

    def hold_file(self, name: str) -> Path:
        return self.directory / "run" / f"{name}.hold"

    def kill(self, name: str) -> None:
        """Kill a process (SIGKILL), and keep it down until `restart` or `restore`.

        Raises:
            ClusterError: it does not end.
            ValueError: no process has that name.
        """
        self.end(name, signal.SIGKILL)

    def end(self, name: str, number: signal.Signals) -> None:
        """End a process by a signal, and keep it down."""
        pid = self.pid(name)
        if name in self.killed:
            return
        self.hold_file(name).touch()
        self.killed.add(name)
        self.paused.discard(name)
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            signal.pidfd_send_signal(fd, number)
            signal.pidfd_send_signal(fd, signal.SIGCONT)
            if not select.select([fd], [], [], GONE_TIMEOUT_S)[0]:
                raise ClusterError(f"{name} has not ended in {GONE_TIMEOUT_S:.0f} s")
        except ProcessLookupError:
            pass  # it ended between the two signals, and has been waited for
        finally:
            os.close(fd)

    def pause(self, name: str) -> None:
        """Stop a process (SIGSTOP), as if it hung: its connections stay, and nothing answers.

        Raises:
            ClusterError: it is down.
            TimeoutError: it still ran after 20 s.
            ValueError: no process has that name.
        """
        self.send(name, signal.SIGSTOP)
        self.paused.add(name)

    def resume(self, name: str) -> None:
        """Let a process that is paused go on; raises as `pause` does."""
        self.send(name, signal.SIGCONT)
        self.paused.discard(name)
        self.restarted = True

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process that runs."""
        pid = self.pid(name)
        try:
            if name in self.killed:
                raise ProcessLookupError
            send_signal(pid, number)
        except ProcessLookupError:
            raise ClusterError(f"{name} is down") from None

    def restart(self, name: str) -> None:
        """Start a process that was killed, or end one that runs (SIGTERM) and start it again.

        Returns when it is ready on the same address, with the same store.

        Raises:
            ClusterError: it has not come back in time.
            ValueError: no process has that name.
        """
        before = self.pid(name)
        self.end(name, signal.SIGTERM)
        self.release(name, before)

    def release(self, name: str, before: int) -> None:
        """Let the host start a process, and wait until it is another one than before."""
        self.restarted = True
        self.hold_file(name).unlink(missing_ok=True)
        self.until(
            lambda: "" if self.pid(name) not in (0, before) else f"{name} has not come back",
        )
        self.killed.discard(name)

    def restore(self) -> None:
        """Resume what is paused, start what was killed, and wait until the cluster takes messages.

        Raises:
            ClusterError: it does not, and why.
        """
        for name in tuple(self.paused):
            self.resume(name)
        for name in tuple(self.killed):
            self.release(name, self.pid(name))
        self.until(self.lack)
        self.restarted = False

    def lack(self) -> str:
        """Return why the cluster takes no messages, "" when it does."""
        from whimbrel.cli.usable import lacking
        from whimbrel.errors import WhimbrelError

        async def ask(admin: "Admin") -> str:
            return lacking(await admin.cluster(), self.slaves + 1)

        try:
            return self.ask(ask)
        except WhimbrelError as error:
            return str(error)

    def until(self, lack: Callable[[], str]) -> None:
        """Wait until nothing is lacking.

        Raises:
            ClusterError: something is for too long.
        """
        deadline = time.monotonic() + RESTORE_TIMEOUT_S
        while missing := lack():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"{missing}, after {RESTORE_TIMEOUT_S:.0f} s; logs in {self.directory / 'logs'}"
                )
            time.sleep(POLL_S)

    # Topics and groups

    def create_topic(self, name: str, *, queues: int = 0) -> None:
        """Create a topic; sends find it at once. `queues` 0 is the broker's default.

        Raises:
            WhimbrelError: it can't be created, of the class that says why.
        """

        async def create(admin: "Admin") -> None:
            await admin.create_topic(name, queues=queues)

        self.ask(create)

    def create_group(self, name: str) -> None:
        """Create a consumer group, which a strict cluster asks for.

        Raises:
            WhimbrelError: it can't be created, of the class that says why.
        """

        async def create(admin: "Admin") -> None:
            await admin.create_group(name)

        self.ask(create)

    def new_topic(self, hint: str = "test") -> str:
        """Create a topic with a name that was never used, and return the name, which begins with the hint."""
        start = NOT_IN_NAMES.sub("_", hint)[:HINT_CHARS_MAX].strip("_") or "test"
        name = f"{start}-{uuid.uuid4().hex[:8]}"
        self.create_topic(name)
        return name

    def ask(self, question: Callable[["Admin"], Awaitable[T]]) -> T:
        """Ask the brokers something, in a thread of its own: the caller may have a running loop."""
        import asyncio  # not before: pytest loads this module in every run

        answers: list[T] = []
        errors: list[BaseException] = []

        async def run() -> None:
            from whimbrel.client import Admin, ClientOptions

            async with Admin(self.endpoint, options=ClientOptions(transport="native")) as admin:
                answers.append(await question(admin))

        def work() -> None:
            try:
                asyncio.run(run())
            except BaseException as error:  # noqa: BLE001 it is raised where it was asked
                errors.append(error)

        thread = threading.Thread(target=work, name="whimbrel-testing")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    # Logs

    def mark_logs(self) -> None:
        """Begin anew: excerpts show what is written from now on."""
        self.marks = {path: path.stat().st_size for path in (self.directory / "logs").glob("*.log")}

    def excerpts(self) -> dict[str, str]:
        """Return the last lines that each process has logged since the mark, if there are any."""
        found = {}
        for path in sorted((self.directory / "logs").glob("*.log")):
            size, since = path.stat().st_size, self.marks.get(path, 0)
            with path.open("rb") as log:
                log.seek(max(since, size - EXCERPT_BYTES_MAX))
                lines = log.read(EXCERPT_BYTES_MAX).decode(errors="replace").splitlines()
            shown = [line[:LINE_CHARS_MAX] for line in lines[-EXCERPT_LINES_MAX:]]
            if shown:
                found[path.stem] = "\n".join(shown)
        return found

"""Runs a whole cluster as local child processes: starts them, restarts those that die, stops them together.

The processes, below a directory `DIR`:

    process               role               ports             store
    nameserver            nameserver         BASE              -
    master                master             BASE+10           DIR/master
    master-replicator     master-replicator  BASE+11 (HA)      DIR/master
    slave-N               slave              BASE+10+10*N      DIR/slave-N
    slave-N-replicator    slave-replicator   none              DIR/slave-N

With several broker groups the processes of the second one are named b-master, b-master-replicator, b-slave-N
and so on, those of the third one c-..., and each broker has the ten ports behind those of the one before.

A child's life:

    starting --ready file--> ready --death--> waiting --delay over--> starting
        \\--death: the first start fails the cluster, later ones wait again--/

All children start at once: the brokers look for the nameserver until it answers. Its port is known
beforehand; a free one is reserved until it has it. The cluster is ready when every child is, and when the
master takes messages, as its shared page says: its nameserver has been told how many brokers to expect, and
is settled once they have registered. Brokers that take none are asked why. What is to be ready or not run at
all (`must_be_ready`) then ends with that; else the cluster stays up, not ready, for a person to look at it.

The delay doubles from `RESTART_FIRST_S` to `RESTART_MAX_S`, and starts over once a child has been up for
`STEADY_S`. `RestartBackoff` decides that, `plan` what is run (`dev_plan.py`). `Supervisor.run` waits
on pidfds and signals. When the supervisor dies for any reason, its children get SIGTERM (PR_SET_PDEATHSIG).

While a file `DIR/run/NAME.hold` exists, a child of that name that has died is not restarted: so one can see
what a cluster does without its master. When the file goes, the child starts within `HOLD_POLL_S`.

`DIR/cluster.json` exists from the moment the cluster is ready, or is shown though it is not, until the end,
and is replaced after each restart:

    {"endpoint": "host:port", "trace_ratio": 0.0,
     "processes": [{"name", "role", "pid", "grpc", "ha", "metrics", "store"}]}

With a `trace_ratio` above 0 every broker and replicator writes its spans to `DIR/traces/NAME.jsonl`.
"""

import contextlib
import ctypes
import errno
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

from whimbrel.cli import malloc
from whimbrel.cli.dev_directory import held, mark
from whimbrel.cli.dev_plan import ChildPlan, DevOptions, RestartBackoff, StartError, plan
from whimbrel.cli.process_times import process_age_s
from whimbrel.errors import file_trouble
from whimbrel.model.route import Endpoint
from whimbrel.store.shared_page import SharedPage

__all__ = ["Child", "Memory", "Supervisor", "View", "memory"]

READY_TIMEOUT_S = 30.0  # enough on a busy machine
ASK_AFTER_S = 2.0  # a cluster that takes no messages by then is asked why; most are ready within one second
REFUSED_S = 2.0  # a master that says for so long what it refuses messages for does so by no chance
USABLE_TIMEOUT_S = 15.0  # then it takes none: a master that lost log to a slave refuses sends
EXPLAIN_TIMEOUT_S = 5.0  # more for the process that asks the brokers
STOP_TIMEOUT_S = 10.0  # then SIGKILL; a broker needs less than a second
READY_POLL_S = 0.01  # ready files are polled only while a child starts
HOLD_POLL_S = 0.25
VIEW_S = 0.5
LOG_BYTES_MAX = 16 * 1024 * 1024  # a larger log is rotated at the next start; one generation is kept
LOG_LINE = re.compile(r"\S+Z [A-Z]+ +(.*?)(?: \[[\w.]+\])?")  # as `telemetry.py` writes them
SETTINGS_CODE = 2  # with which a process ends that refuses its settings
PR_SET_PDEATHSIG = 1

State = Literal["starting", "ready", "waiting", "ended"]

libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a process in bytes: private pages, and pages of files (code, mapped logs)."""

    resident: int
    anonymous: int
    file: int


def memory(pid: int) -> Memory | None:
    """Return the resident memory of a process, None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (x.partition(":") for x in lines)
        if "kB" in rest
    }
    if "VmRSS" not in sizes:
        return None  # a zombie has no memory left
    return Memory(sizes["VmRSS"], sizes["RssAnon"], sizes["RssFile"] + sizes["RssShmem"])


class Child:
    """One supervised process; views read its fields.

    Attributes:
        plan: the process to run.
        state: as in the module's text.
        ready: content of its ready file.
        ready_s: seconds from its start until it was ready.
        starts: number of starts.
        ended: how it ended last, for people; `code` is its exit code then.
        log_begin: where its log begins of the last start, in bytes of the file.
    """

    def __init__(self, plan: ChildPlan, directory: Path, *, death_signal: int = signal.SIGTERM) -> None:
        """Prepare; nothing is started.

        Args:
            death_signal: what it gets when the supervisor dies.
        """
        self.plan = plan
        self.death_signal = death_signal
        self.ready_file = directory / "run" / f"{plan.name}.ready.json"
        self.hold_file = directory / "run" / f"{plan.name}.hold"
        self.log_file = directory / "logs" / f"{plan.name}.log"
        self.state: State = "ended"
        self.ready: dict[str, Any] = {}
        self.ready_s = 0.0
        self.starts = 0
        self.ended = ""
        self.code = self.log_begin = 0
        self.restarts = RestartBackoff()
        self.started_at = 0.0
        self.due = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1

    @property
    def pid(self) -> int:
        """Return the process id, 0 when it does not run."""
        return self.process.pid if self.process is not None and self.state in ("starting", "ready") else 0

    @property
    def address(self) -> str:
        """Return where it listens, "" when it does not."""
        return str(self.ready.get("grpc") or self.ready.get("ha") or "")

    def command(self) -> list[str]:
        """Return the command line; a restarted child keeps the ports that it had."""
        settings = dict(self.plan.settings)
        if self.plan.port == 0 and self.address:
            settings["port"] = int(self.address.rpartition(":")[2])
        if "metrics_port" in settings and self.ready.get("metrics"):
            settings["metrics_port"] = int(str(self.ready["metrics"]).rpartition(":")[2])
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]
        return [
            sys.executable,
            "-P",  # what lies in the present directory is none of ours
            "-m",
            f"whimbrel.{self.plan.program}",
            *flags,
            f"--ready-file={self.ready_file}",
        ]

    def start(self, now: float) -> None:
        """Start the process; its output goes to its log."""
        self.ready_file.unlink(missing_ok=True)
        parent = os.getpid()

        def follow_parent() -> None:
            libc.prctl(PR_SET_PDEATHSIG, self.death_signal)
            if os.getppid() != parent:  # the parent died before the call
                os._exit(1)

        with self.log_file.open("ab") as log:
            self.log_begin = log.tell()
            self.process = subprocess.Popen(
                self.command(),
                env=malloc.with_settings(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the supervisor only, which stops them in order
                preexec_fn=follow_parent,
            )
        self.pidfd = os.pidfd_open(self.process.pid)
        self.state, self.started_at = "starting", now
        self.starts += 1

    def poll_ready(self, now: float) -> bool:
        """Read the ready file if it exists; return whether that made the child ready."""
        if self.state != "starting" or not self.ready_file.exists():
            return False
        self.ready = json.loads(self.ready_file.read_text(encoding="utf-8"))
        self.ready_s = now - self.started_at
        self.state = "ready"
        self.restarts.ready(now)
        return True

    def reap(self) -> None:
        """Take the exit code of a process that has ended."""
        assert self.process is not None
        code = self.process.wait()
        os.close(self.pidfd)
        self.pidfd = -1
        self.state = "ended"
        self.ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self.code = code
        if code == 1 and (said := self.last_words()):
            self.ended += f" ({said})"

    def last_words(self) -> str:
        """Return the last line of its log, without the time and the name of the logger.

        Of one that refused its settings these are all lines that it wrote: a sentence for each.
        """
        with contextlib.suppress(OSError), self.log_file.open("rb") as log:
            log.seek(self.log_begin)
            lines = [line.strip() for line in log.read().decode(errors="replace").split("\n") if line.strip()]
            if self.code == SETTINGS_CODE:
                start = f"whimbrel {self.plan.program}: "
                return "; ".join(line.removeprefix(start) for line in lines if line.startswith(start))
            shape = LOG_LINE.fullmatch(lines[-1]) if lines else None
            return shape[1] if shape else "".join(lines[-1:])
        return ""

    def described(self) -> dict[str, Any]:
        """Return its entry in cluster.json."""
        return {
            "name": self.plan.name,
            "role": self.plan.role,
            "pid": self.pid,
            "grpc": self.ready.get("grpc") or "",
            "ha": self.ready.get("ha") or "",
            "metrics": self.ready.get("metrics") or "",
            "store": str(self.plan.store or ""),
        }


class View(Protocol):
    """Shows what the supervisor reports."""

    def notify(self, text: str) -> None:
        """Show an event."""

    def ready(self, endpoint: str, children: Sequence[Child], ready_s: float, lack: str = "") -> None:
        """Show that the cluster runs, so many seconds after this process has started.

        Args:
            endpoint: of its nameserver.
            children: all processes.
            ready_s: how long it took.
            lack: why it takes no messages, and so is not ready; "" when it does.
        """

    def refresh(self, children: Sequence[Child]) -> None:
        """Show the present state; called twice a second and after every change."""


@dataclass(slots=True)
class Wakeups:
    """The selector over pidfds and signals."""

    ends_with: int | None = None  # a pidfd: the end of that process counts as a SIGTERM
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    signals: list[int] = field(default_factory=list)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Catch SIGINT, SIGTERM and SIGHUP: each makes `select` return, and is added to `signals`."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        self.selector.register(reader, selectors.EVENT_READ)
        if self.ends_with is not None:
            self.selector.register(self.ends_with, selectors.EVENT_READ)

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)

        before = {
            number: signal.signal(number, on_signal)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            self.selector.close()
            reader.close()
            writer.close()

    def wait(self, timeout: float) -> list[Child]:
        """Wait; return the children that have ended."""
        ended = []
        for key, _ in self.selector.select(max(timeout, 0.0)):
            if isinstance(key.data, Child):
                ended.append(key.data)
            elif key.fileobj == self.ends_with:
                self.selector.unregister(key.fileobj)
                self.signals.append(signal.SIGTERM)
            else:
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.recv(4096)
        return ended


class Supervisor:
    """Runs one cluster. `run` returns after a signal, when all children are gone.

    Args:
        ends_with: a descriptor of a process (pidfd) whose end counts as a SIGTERM.
        must_be_ready: a cluster that takes no messages has not started.

    Attributes:
        complete: all processes run, and it is known whether messages are taken.
        lack: why they are not; "" when they are.
    """

    def __init__(
        self, options: DevOptions, view: View, *, ends_with: int | None = None, must_be_ready: bool = False
    ) -> None:
        self.options = options
        self.must_be_ready = must_be_ready
        self.lack = ""
        self.stale = self.refused = False  # cluster.json is to be written again, and could not be
        self.view = view
        self.directory = options.directory
        self.cluster_file = self.directory / "cluster.json"
        self.children: list[Child] = []
        self.wakeups = Wakeups(ends_with)
        self.complete = False

    def run(self) -> None:
        """Run the cluster until SIGINT, SIGTERM or SIGHUP.

        Raises:
            StartError: it could not be started; nothing is left running.
        """
        plan(self.options, "")
        mark(self.directory)
        for folder in ("run", "logs"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
        with self.locked(), self.wakeups.installed():
            self.cluster_file.unlink(missing_ok=True)
            for left in (self.directory / "run").glob("*.hold"):
                left.unlink()
            check_ports(self.options.host, plan(self.options, ""))
            if not vip_ports_free(self.options.host, plan(self.options, "")):
                self.options = replace(self.options, vip_ports=False)  # few need them
            try:
                self.start_all()
                while not self.wakeups.signals:
                    self.run_once(VIEW_S)
                    self.look_again()
            finally:
                try:
                    self.cluster_file.unlink(missing_ok=True)
                finally:  # also on a disk that has become read-only
                    self.stop_all()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it before it was ready."""
        return signal.SIGINT in self.wakeups.signals and not self.complete

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second supervisor out of the directory."""
        with held(self.directory) as mine:
            if not mine:
                raise StartError(
                    f"another `whimbrel dev` runs in {self.directory}: stop it, or choose another --dir"
                )
            yield

    def start_all(self) -> None:
        """Start all children, and wait until the cluster takes messages."""
        death_signal = signal.SIGKILL if self.options.ephemeral else signal.SIGTERM
        with reserved_port(self.options.host, self.options.port) as port:
            plans = plan(self.options, str(Endpoint(self.options.host, port)))
            self.start_and_wait([Child(each, self.directory, death_signal=death_signal) for each in plans])
        self.lack = self.wait_usable()
        if self.wakeups.signals:
            return
        if self.lack and self.must_be_ready:
            raise StartError(f"the cluster takes no messages, and was stopped again: {self.lack}")
        self.complete = True
        self.write_cluster()
        self.view.ready(self.children[0].address, self.children, process_age_s(), self.lack)

    def look_again(self) -> None:
        """Tell when a cluster that took no messages takes them."""
        if self.lack and self.takes_messages():
            self.lack = ""
            self.view.notify("the cluster is ready: it takes messages now")

    def start_and_wait(self, children: list[Child]) -> None:
        """Start these and wait until all are ready or a signal came."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        self.children += children
        for child in children:
            rotate(child.log_file)
            self.launch(child)
        while not self.wakeups.signals and any(child.state != "ready" for child in children):
            self.run_once(READY_POLL_S)
            late = [child.plan.name for child in children if child.state == "starting"]
            if late and time.monotonic() > deadline:
                raise StartError(
                    f"{', '.join(late)}: not ready in {READY_TIMEOUT_S:.0f} s; see {self.directory / 'logs'}"
                )

    def wait_usable(self) -> str:
        """Wait until the masters take messages; return why they do not, "" when they do or a signal came."""
        deadline = time.monotonic() + ASK_AFTER_S
        while time.monotonic() < deadline:
            if self.wakeups.signals or self.takes_messages():
                return ""
            self.run_once(READY_POLL_S)
        return self.told_lack()

    def told_lack(self) -> str:
        """Go on waiting while a process asks the brokers why they take no messages; return what they say."""
        deadline = time.monotonic() + USABLE_TIMEOUT_S - ASK_AFTER_S + EXPLAIN_TIMEOUT_S
        with subprocess.Popen(
            self.usable_command(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        ) as asking:
            try:
                while asking.poll() is None and time.monotonic() < deadline:
                    if self.wakeups.signals or self.takes_messages():
                        return ""
                    self.run_once(READY_POLL_S)
            finally:
                asking.kill()
            assert asking.stdout is not None
            lack = asking.stdout.read().decode().strip()
        if self.wakeups.signals or self.takes_messages():
            return ""
        return lack or f"nobody says why; see {self.directory / 'logs'}"

    def takes_messages(self) -> bool:
        """Return whether in each group a broker takes messages, as its shared page says."""
        waiting = {
            child.plan.settings["name"] for child in self.children if child.plan.role in ("master", "member")
        }
        for child in self.children:
            if child.plan.program == "broker" and child.plan.store is not None:
                page = SharedPage.snapshot(child.plan.store)
                if page is not None and page.broker_pid == child.pid and page.writable:
                    waiting.discard(child.plan.settings["name"])
        return not waiting

    def usable_command(self) -> list[str]:
        """Return the command that waits, and says why the cluster takes no messages."""
        brokers = sum(child.plan.program == "broker" for child in self.children)
        waits = USABLE_TIMEOUT_S - ASK_AFTER_S, REFUSED_S
        words = [self.children[0].address, str(brokers), *map(str, waits)]
        return [sys.executable, "-P", "-m", "whimbrel.cli.usable", *words]

    def launch(self, child: Child) -> None:
        """Start one child and watch it."""
        child.start(time.monotonic())
        self.wakeups.selector.register(child.pidfd, selectors.EVENT_READ, child)

    def run_once(self, timeout: float) -> None:
        """Wait for the next event, at most `timeout`, and handle it."""
        now = time.monotonic()
        for child in self.children:
            if child.state == "waiting":
                timeout = min(timeout, child.due - now)
            elif child.state == "starting":
                timeout = min(timeout, READY_POLL_S)
        for child in self.wakeups.wait(timeout):
            self.on_death(child)
        now = time.monotonic()
        for child in self.children:
            if child.poll_ready(now) and self.complete:
                self.stale = True
                self.view.notify(f"{child.plan.name} is back after {child.ready_s:.2f} s, pid {child.pid}")
            elif child.state == "waiting" and child.due <= now:
                if child.hold_file.exists():
                    child.due = now + HOLD_POLL_S
                else:
                    self.launch(child)
        if self.stale:
            self.replace_cluster()
        self.view.refresh(self.children)

    def replace_cluster(self) -> None:
        """Write cluster.json again; while the disk refuses that, what runs goes on."""
        try:
            self.write_cluster()
        except OSError as error:
            if not self.refused:
                trouble = file_trouble(error, self.cluster_file)
                self.view.notify(f"{trouble}; until it can be written, commands see what was before")
            self.refused = True
        else:
            self.stale = self.refused = False

    def on_death(self, child: Child) -> None:
        """Handle a child that has ended by itself: fail the first start, else plan the restart."""
        self.wakeups.selector.unregister(child.pidfd)
        child.reap()
        if self.wakeups.signals:
            return
        if not self.complete:
            words = child.last_words()
            raise StartError(
                f"{child.plan.name} did not start: {words or child.ended} (log: {child.log_file})",
                child.log_file,
            )
        now = time.monotonic()
        if child.hold_file.exists():
            child.restarts = RestartBackoff()  # whoever holds it down knows why it died
        child.due = child.restarts.died(now)
        child.state = "waiting"
        again = f"starting it again in {child.due - now:.1f} s"
        if child.hold_file.exists():
            again = f"it stays down while {child.hold_file} is there"
        self.view.notify(f"{child.plan.name}: {child.ended}; {again}")

    def stop_all(self) -> None:
        """Stop all children, the nameserver last, so that brokers can unregister."""
        nameservers = [child for child in self.children if child.plan.role == "nameserver"]
        others = [child for child in self.children if child.plan.role != "nameserver"]
        for group in (others, nameservers):
            running = [child for child in group if child.pid]
            for child in running:
                signal.pidfd_send_signal(child.pidfd, signal.SIGTERM)
                signal.pidfd_send_signal(child.pidfd, signal.SIGCONT)  # somebody may have stopped it
            self.wait_gone(running)

    def wait_gone(self, running: list[Child]) -> None:
        """Wait until some children are gone; kill them on a second Ctrl-C, or after STOP_TIMEOUT_S."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        asked = len(self.wakeups.signals)
        left, killed = set(running), False
        while left:
            for child in self.wakeups.wait(min(1.0, deadline - time.monotonic())):
                self.wakeups.selector.unregister(child.pidfd)
                child.reap()
                left.discard(child)
            impatient = len(self.wakeups.signals) > max(asked, 1)
            if left and not killed and (impatient or time.monotonic() >= deadline):
                killed, deadline = True, time.monotonic() + STOP_TIMEOUT_S
                for child in left:
                    self.view.notify(f"{child.plan.name} does not stop; killing it")
                    signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)

    def write_cluster(self) -> None:
        """Replace cluster.json."""
        content = {
            "endpoint": self.children[0].address,
            "trace_ratio": self.options.trace_ratio,
            "processes": [child.described() for child in self.children],
        }
        fresh = self.cluster_file.with_suffix(".json.tmp")
        fresh.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.cluster_file)


def check_ports(host: str, plans: Sequence[ChildPlan]) -> None:
    """Raise StartError if a port is taken: a child's own error would come later, and be less clear."""
    for each in plans:
        if not each.port:
            continue
        if each.port > 65535:
            raise StartError(f"{each.name} would need port {each.port}; choose a smaller --port")
        try:
            try_port(host, each.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise StartError(f"can't listen on {host}:{each.port}: {error.strerror}") from None
            raise StartError(
                f"port {each.port} (for the {each.name}) is taken: stop its user or choose another --port"
            ) from None


def vip_ports_free(host: str, plans: Sequence[ChildPlan]) -> bool:
    """Return whether nobody listens on the further ports."""
    try:
        for each in plans:
            if each.vip_port is not None:
                try_port(host, each.vip_port)
    except OSError:
        return False
    return True


def try_port(host: str, port: int) -> None:
    """Raise OSError unless a server could listen there."""
    with socket.socket(family_of(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


@contextlib.contextmanager
def reserved_port(host: str, port: int) -> Iterator[int]:
    """Yield a port, a free one for 0, which no other process is given by chance while the block runs.

    The socket that holds it does not listen, so that a server that sets SO_REUSEADDR, as all of ours do, can.
    """
    if port:
        yield port
        return
    with socket.socket(family_of(host), socket.SOCK_STREAM) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, 0))
        yield int(reservation.getsockname()[1])


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def rotate(log: Path) -> None:
    """Rename a log that has become large."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))

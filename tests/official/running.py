"""Runs RocketMQ 4.9.3's own integration tests against a cluster that is named by its name server's address.

Its tests are on Maven Central (`rocketmq-test:4.9.3:jar:tests`); all but those of `base/dledger` and `lmq`
start their servers by one class, `BaseConf`, in whose place ours stands first on the class path
(`java/org/apache/rocketmq/test/base/BaseConf.java`). `prepare` fetches and compiles into a cache, once; `run`
gives the classes one after the other to one JVM, or to several:

    with started("ours", tmp_path) as cluster:
        for outcome in run(QUICK, cluster.name_server, tmp_path / "run"):
            print(outcome.name, outcome.tests, outcome.failures)

A class has a deadline: after it the JVM writes where it stands to its log and is ended; the class has failed.
"""

import contextlib
import functools
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from official.classes import CLASSES
from support.systems.sdk_programs import cache, copied, tool
from support.systems.sdk_programs import run as install

__all__ = ["DEADLINE_S", "Outcome", "compile_java", "prepare", "run"]

HERE = Path(__file__).resolve().parent
INSTALL_TIMEOUT_S = 300
DEADLINE_S = 240.0  # of a class; the longest takes 70 s, and a wait of the tests' own is up to 120 s
DUMP_S = 2.0  # for a JVM to write where its threads stand
MARK = "@official "


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a class.

    Attributes:
        name: below org.apache.rocketmq.test.
        tests: how many of its tests ran.
        failures: for each that failed: its name, the first line of why, and where it stands in its file.
        tries: how often it was run, when it is one of those that do not always pass.
    """

    name: str
    tests: int
    failures: tuple[str, ...]
    seconds: float
    tries: int = 1

    @property
    def passed(self) -> bool:
        """Tell whether it has tests, and all passed."""
        return self.tests > 0 and not self.failures


@functools.cache
def prepare() -> tuple[str, ...]:
    """Fetch and compile what is not there yet; return the command up to the flags of a run.

    Raises:
        sdk_programs.Missing: a tool or the jars are not to be had here.
    """
    java, javac, mvn = tool("java"), tool("javac"), tool("mvn")
    folder = copied("java", sources=HERE, root=cache() / "official")
    jars = folder / "jars"
    if not jars.exists():
        part = folder / "jars.part"
        words = [mvn, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={part}"]
        install(words, folder, "mvn dependency:copy-dependencies", INSTALL_TIMEOUT_S)
        part.rename(jars)
    classes = folder / "classes"
    compile_java(javac, f"{jars}/*", sorted(folder.rglob("*.java")), classes)
    return (java, "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{jars}/*")


def compile_java(javac: str, jars: str, sources: Sequence[Path], classes: Path) -> None:
    """Compile where a source is newer than what was compiled last."""
    stamp = classes / "compiled"
    if stamp.exists() and all(source.stat().st_mtime < stamp.stat().st_mtime for source in sources):
        return
    classes.mkdir(exist_ok=True)
    words = [javac, "-nowarn", "-cp", jars, "-d", str(classes), *map(str, sources)]
    install(words, classes, "javac", INSTALL_TIMEOUT_S)
    stamp.touch()


def run(
    names: Sequence[str], name_server: str, root: Path, *, jobs: int = 1, deadline_s: float = DEADLINE_S
) -> Iterator[Outcome]:
    """Run classes, and yield what became of each as it is known.

    Args:
        names: below org.apache.rocketmq.test.
        root: for the logs of JVMs and what clients keep at home.
        jobs: how many JVMs share the classes.
    """
    for name in names:
        assert name in CLASSES, f"{name} is not in official/classes.py"
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        left.put(name)
    done: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
    machines: list[Machine] = []

    def work(number: int) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(done.put, None)
            machine = None
            while (name := next_of(left)) is not None:
                if machine is None or not machine.alive:
                    machine = Machine(name_server, root / str(number))
                    machines.append(machine)
                    stack.callback(machine.kill)
                done.put(machine.run(name, deadline_s))

    with ThreadPoolExecutor(jobs) as workers:
        running = [workers.submit(work, number) for number in range(jobs)]
        try:
            for _ in range(jobs):
                yield from iter(done.get, None)
        finally:  # the caller may have had enough
            while next_of(left) is not None:
                pass
            for machine in machines:
                machine.child.kill()
        for each in running:
            each.result()


def next_of(names: queue.SimpleQueue[str]) -> str | None:
    """Return the next name, None after the last."""
    try:
        return names.get_nowait()
    except queue.Empty:
        return None


class Machine:
    """A JVM that runs classes as it is told their names."""

    def __init__(self, name_server: str, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.log = root / "out.log"
        home = [f"-Duser.home={root}", f"-Drocketmq.client.logRoot={root}"]
        with self.log.open("ab") as errors:
            self.child = subprocess.Popen(
                [*prepare(), *home, f"-Dofficial.nameserver={name_server}", "Official"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=root,  # RocketMQ's tests log into a folder there
                text=True,
                errors="replace",
                start_new_session=True,
            )
        self.said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self.read, name="official-tests", daemon=True)
        self.reader.start()

    @property
    def alive(self) -> bool:
        """Tell whether it can be given another class."""
        return self.child.poll() is None

    def read(self) -> None:
        """Pass on what it says, and keep the rest of its output."""
        assert self.child.stdout is not None
        with self.log.open("a", encoding="utf-8") as log:
            for line in self.child.stdout:
                log.write(line)
                log.flush()
                if line.startswith(MARK):
                    self.said.put(json.loads(line.removeprefix(MARK)))
        self.said.put(None)

    def run(self, name: str, deadline_s: float) -> Outcome:
        """Run a class; one that is not done in time ends the JVM."""
        assert self.child.stdin is not None
        began = time.monotonic()
        self.child.stdin.write(f"{name}\n")
        self.child.stdin.flush()
        test, begun = "", 0
        while True:
            try:
                said = self.said.get(timeout=max(0.0, began + deadline_s - time.monotonic()))
            except queue.Empty:
                self.dump()
                self.kill()
                return Outcome(name, begun, (f"{test}: not done within {deadline_s:g} s",), deadline_s)
            if said is None:
                why = f"{test}: the JVM ended with code {self.child.wait()}"
                return Outcome(name, begun, (why,), time.monotonic() - began)
            if "test" in said:
                test, begun = said["test"], begun + 1
                continue
            failures = tuple(map(told, said["failures"]))
            return Outcome(name, said["run"], failures, time.monotonic() - began)

    def dump(self) -> None:
        """Have it write where its threads stand."""
        self.child.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(DUMP_S)

    def kill(self) -> None:
        """End it."""
        self.child.kill()
        self.child.wait()
        self.reader.join()


def told(failure: dict[str, str]) -> str:
    """Return a failure in one line."""
    place = f" ({failure['at']})" if failure["at"] else ""
    why = " ".join(failure["why"].split())
    return f"{failure['test']}: {why[:200]}{place}"

"""Runs the parts of a plan, side by side where the plan says so, and keeps what they print.

    build/ci/NAME.log       all that the part has printed
    build/ci/NAME.xml       what its tests took, as pytest writes it (JUnit)

Each track is a thread that runs its parts in their order; a part waits until those that it comes `after` have
ended. A part that fails ends nothing else: its output stands at the end, behind that of the others. Idle
parts get the time that no other process wants (SCHED_IDLE), so that tests that wait for processes do not wait
for them.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.plan import Part

__all__ = ["Outcome", "Run"]

NOT_STARTED = 127  # the exit code that shells have for that
BEAT_S = 60.0  # how often a line says what runs; a run that prints nothing for long looks like one that hangs
END_S = 20.0  # what a part has to end in, before it is killed
TAIL_LINES, FAILED_LINES = 6, 400  # of the output: of each part, and of one that has failed
# Linux shares the cores among sessions first, if it does so by `autogroup`, and then within each.
YIELDING = """
[ ! -w /proc/self/autogroup ] || echo 5 > /proc/self/autogroup
exec nice -n 5 "$@"
"""
IDLE = """
[ ! -w /proc/self/autogroup ] || echo 19 > /proc/self/autogroup
if command -v chrt > /dev/null; then exec chrt --idle 0 "$@"; else exec nice -n 19 "$@"; fi
"""


@dataclass(frozen=True)
class Outcome:
    """How a part ended.

    Attributes:
        code: its exit code.
        seconds, cpu_s: what it took; processes that nobody waited for are not in the CPU time.
    """

    part: Part
    code: int
    seconds: float
    cpu_s: float

    @property
    def word(self) -> str:
        """Say it in one word."""
        return "failed" if self.code else "passed"


def command_of(part: Part, folder: Path) -> list[str]:
    """Return what to start: tests with a file for their times, an idle part by what makes it one.

    What tests start themselves must not write that file, so it is no option in the environment.
    """
    words = list(part.command)
    if part.tests:
        words += [
            f"--junitxml={folder / part.name}.xml",
            "-o",
            "junit_family=xunit1",
            "-p",
            "no:cacheprovider",
        ]
    if part.idle or part.yields:
        return ["sh", "-c", IDLE if part.idle else YIELDING, "sh", *words]
    return words


class Run:
    """A run of a plan.

    Attributes:
        folder: where the output goes.
        outcomes: of the parts that have ended, by name.
    """

    def __init__(self, parts: Sequence[Part], folder: Path, environment: Mapping[str, str]) -> None:
        self.parts, self.folder, self.environment = parts, folder, environment
        self.ended = {part.name: threading.Event() for part in parts}
        self.outcomes: dict[str, Outcome] = {}
        self.running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self.began = time.monotonic()
        self.stopping = False

    def say(self, line: str) -> None:
        """Print a line with the time since the begin."""
        minutes, seconds = divmod(int(time.monotonic() - self.began), 60)
        sys.stdout.write(f"[{minutes:2}:{seconds:02}] {line}\n")
        sys.stdout.flush()

    def __call__(self) -> list[Outcome]:
        """Run all parts; return how each ended, in the order of the plan."""
        tracks = dict.fromkeys(part.track for part in self.parts)
        threads = [threading.Thread(target=self.run_track, args=(track,), daemon=True) for track in tracks]
        beat = threading.Event()
        beats = threading.Thread(target=self.beat, args=(beat,), daemon=True)
        for thread in (*threads, beats):
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self.stop(threads)
        beat.set()
        return [self.outcomes[part.name] for part in self.parts]

    def stop(self, threads: Sequence[threading.Thread]) -> None:
        """End what still runs, with all that it has started; nothing begins any more."""
        self.stopping = True
        for number in (signal.SIGINT, signal.SIGKILL):
            for child, _ in list(self.running.values()):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
            deadline = time.monotonic() + END_S
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def run_track(self, track: str) -> None:
        """Run the parts of a track, each after those that it comes after."""
        for part in self.parts:
            if part.track == track:
                for name in part.after:
                    self.ended[name].wait()
                if self.stopping:
                    return
                try:
                    self.outcomes[part.name] = self.run_part(part)
                except OSError as error:
                    self.outcomes[part.name] = Outcome(part, NOT_STARTED, 0.0, 0.0)
                    self.say(f"{part.name} can't be started: {error}")
                self.ended[part.name].set()

    def run_part(self, part: Part) -> Outcome:
        """Run a part to its end."""
        self.say(f"{part.name} begins")
        log = self.folder / f"{part.name}.log"
        began = time.monotonic()
        with log.open("wb") as output:
            child = subprocess.Popen(
                command_of(part, self.folder),
                env={**self.environment, **part.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[part.name] = child, began
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        del self.running[part.name]
        seconds = time.monotonic() - began
        outcome = Outcome(part, child.returncode, seconds, usage.ru_utime + usage.ru_stime)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = "".join(f"\n        {line}" for line in lines[-TAIL_LINES:])
        self.say(f"{part.name} {outcome.word} after {seconds:.0f} s{shown}")
        return outcome

    def beat(self, over: threading.Event) -> None:
        """Say now and then what runs."""
        while not over.wait(BEAT_S):
            now = time.monotonic()
            running = [f"{name} for {now - began:.0f} s" for name, (_, began) in self.running.items()]
            self.say(f"running: {', '.join(running)}")

    def show_failures(self) -> None:
        """Print the output of the parts that failed."""
        for name, outcome in self.outcomes.items():
            if outcome.code and outcome.code != NOT_STARTED:
                text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                lines = text.splitlines()[-FAILED_LINES:]
                print(f"\n==== {name} failed with exit code {outcome.code}; the end of its output:")
                print("\n".join(lines), flush=True)

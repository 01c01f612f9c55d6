"""Parts that run side by side: their order, their output, their ends."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci import run as run_program
from ci.full_runs import FullRun
from ci.plan import Part
from ci.run import noted, summed
from ci.runner import Outcome, Run
from ci.times import Counts
from support.waiting import until


def part(name: str, program: str, track: str = "a", after: tuple[str, ...] = (), **more: object) -> Part:
    command = (sys.executable, "-c", program)
    return Part(name=name, command=command, track=track, after=after, **more)  # type: ignore[arg-type]


def run(parts: list[Part], folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, Outcome]:
    return {outcome.part.name: outcome for outcome in Run(parts, folder, environment or {})()}


def test_parts_of_one_track_run_one_after_the_other_and_those_after_others_wait(tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'order')!r}, 'a').write"
    parts = [
        part("first", f"{note}('1')"),
        part("second", f"{note}('2')"),
        part("last", f"{note}('3')", "b", after=("second",)),
    ]
    assert [outcome.code for outcome in run(parts, tmp_path).values()] == [0, 0, 0]
    assert (tmp_path / "order").read_text() == "123"


def test_tracks_run_side_by_side(tmp_path: Path) -> None:
    """Each of both waits until the other one has begun."""
    pipe = tmp_path / "pipe"
    subprocess.run(["mkfifo", str(pipe)], check=True)
    parts = [
        part("reader", f"open({str(pipe)!r}).read()", "a"),
        part("writer", f"open({str(pipe)!r}, 'w').close()", "b"),
    ]
    assert [outcome.code for outcome in run(parts, tmp_path).values()] == [0, 0]


def test_a_part_that_fails_ends_nothing_else_and_its_output_is_shown_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "; ".join(f"print('line {number}')" for number in range(20))
    running = Run([part("bad", f"{lines}; exit(3)"), part("good", "print('fine')")], tmp_path, {})
    outcomes = running()
    assert [outcome.code for outcome in outcomes] == [3, 0]
    assert (tmp_path / "good.log").read_text() == "fine\n"
    said = capsys.readouterr().out
    assert "bad failed after" in said
    assert "line 0\n" not in said
    running.show_failures()
    said = capsys.readouterr().out
    assert "bad failed with exit code 3" in said
    assert "line 0\n" in said
    assert "fine" not in said


def test_a_part_that_cannot_be_started_fails_and_holds_up_nothing(tmp_path: Path) -> None:
    missing = Part(name="missing", command=("/no/such/program",), track="a")
    outcomes = run([missing, part("next", "pass"), part("last", "pass", "b", after=("missing",))], tmp_path)
    assert [outcome.code for outcome in outcomes.values()] == [127, 0, 0]


def test_the_cpu_time_of_a_part_is_that_of_its_processes(tmp_path: Path) -> None:
    work = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    assert run([part("busy", work)], tmp_path)["busy"].cpu_s >= 0.2


def test_tests_write_their_times_beside_the_output(tmp_path: Path) -> None:
    show = "import sys; print(sys.argv[1:])"
    run([part("tests", show, tests=True), part("other", show)], tmp_path)
    assert f"--junitxml={tmp_path}/tests.xml" in (tmp_path / "tests.log").read_text()
    assert (tmp_path / "other.log").read_text() == "[]\n"


@pytest.mark.parametrize(("how", "nice"), [("yields", 5), ("idle", 19)])
def test_a_part_leaves_the_cores_to_others_as_it_says(how: str, nice: int, tmp_path: Path) -> None:
    show = "import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0))"
    group = Path("/proc/self/autogroup")
    if group.exists():
        show += f"; print(open({str(group)!r}).read())"
    shy = part("shy", show, yields=how == "yields", idle=how == "idle")
    run([shy], tmp_path, {"PATH": os.environ["PATH"]})
    said = (tmp_path / "shy.log").read_text()
    assert said.startswith(f"False {nice}\n") or (how == "idle" and said.startswith("True "))
    assert not group.exists() or f"nice {nice}\n" in said


def test_what_runs_ends_when_the_run_is_interrupted(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = f"open({str(ready)!r}, 'w').close(); import threading; threading.Event().wait()"
    running = Run([part("endless", program), part("never", "pass")], tmp_path, {})
    track = threading.Thread(target=running.run_track, args=("a",))
    track.start()
    until(ready.exists)
    running.stop([track])
    assert not track.is_alive()
    assert running.outcomes["endless"].code != 0
    assert "never" not in running.outcomes


def test_the_last_lines_count_tests_and_name_the_parts_that_failed() -> None:
    ended = [Outcome(part("a", ""), 0, 1.0, 1.0), Outcome(part("b", ""), 2, 1.0, 1.0)]
    lines = summed(ended, Counts(7, 0, 3, {"no java": 2, "no go": 1}), 61.2).splitlines()
    assert lines == [
        "skipped, 1 of: no go",
        "skipped, 2 of: no java",
        "1 of 2 parts passed",
        "    failed: b",
        "7 passed, 1 failed, 3 skipped",
        "in 1 min 1 s",
    ]


def test_a_full_run_is_noted_with_its_tests_where_it_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_program, "FOLDER", tmp_path)
    cases = '<testcase name="a" time="1"/><testcase name="b"><skipped message="no java"/></testcase>'
    (tmp_path / "slow.xml").write_text(f"<testsuites>{cases}</testsuites>")
    known = {"failed": FullRun("old", "2026-11-01", 1.0), "rules": FullRun("old", "2026-11-01", 2.0)}
    outcomes = [
        Outcome(part(name, ""), code, 12.34, 0) for name, code in [("failed", 1), ("rules", 0), ("slow", 0)]
    ]
    assert noted(known, outcomes, "new", "2026-11-28") == {
        "failed": known["failed"],
        "rules": FullRun("new", "2026-11-28", 12.3),
        "slow": FullRun("new", "2026-11-28", 12.3, passed=1, skipped=1),
    }

"""What a run took: read from pytest's files, kept on a page, compared with that page."""

from pathlib import Path

from ci.times import PartTimes, SlowTest, Times, committed, compared, page, read_tests

CASE = '<testcase classname="tests.unit.test_a" name='
JUNIT = f"""<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" tests="4">
{CASE}"test_slow[x|y]" file="tests/unit/test_a.py" time="2.5" />
{CASE}"test_quick" file="tests/unit/test_a.py" time="0.1" />
{CASE}"test_bad" time="0.3"><failure message="no">no</failure></testcase>
{CASE}"test_left" time="0"><skipped message="no java">x</skipped></testcase>
</testsuite></testsuites>
"""
TIMES = Times(
    "abc", "2026-11-28", 2, 90.5, (PartTimes("memory", 60.25, 100.0), PartTimes("sim", 30.0, 59.0)),
    (SlowTest("tests/unit/test_a.py::test_slow", "memory", 2.5),),
)  # fmt: skip


def test_tests_are_read_with_the_slowest_first_and_the_reasons_of_those_that_were_skipped(
    tmp_path: Path,
) -> None:
    (tmp_path / "memory.xml").write_text(JUNIT)
    found, counts = read_tests(tmp_path, ["memory", "never run"])
    assert found[0] == SlowTest("tests/unit/test_a.py::test_slow[x|y]", "memory", 2.5)
    assert [test.seconds for test in found] == [2.5, 0.3, 0.1, 0.0]
    assert (counts.passed, counts.failed, counts.skipped, dict(counts.reasons)) == (2, 1, 1, {"no java": 1})


def test_a_page_keeps_its_head_and_is_read_back() -> None:
    text = page(TIMES, "# How long\n\nWritten by hand.\n")
    assert text.startswith("# How long\n\nWritten by hand.\n\nThe last run: commit abc")
    assert committed(text) == {
        "memory": 60.2, "sim": 30.0, "all": 90.5, "tests/unit/test_a.py::test_slow": 2.5,
    }  # fmt: skip


def test_a_run_stands_beside_the_page() -> None:
    lines = compared(TIMES, {"memory": 55.0}).splitlines()
    assert "    60.2     55.0  memory" in lines
    assert "    30.0        -  sim" in lines
    assert "     2.5        -  tests/unit/test_a.py::test_slow" in lines


def test_times_are_kept_for_the_command_that_writes_the_page(tmp_path: Path) -> None:
    TIMES.save(tmp_path / "times.json")
    assert Times.load(tmp_path / "times.json") == TIMES

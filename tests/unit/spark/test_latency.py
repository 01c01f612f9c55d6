"""`whimbrel spark latency` before Spark starts: what is refused."""

import pytest

from whimbrel.cli.main import main
from whimbrel.spark.spans import OURS, STAGES
from whimbrel.telemetry import STAGES as NAMES


def test_spans_and_a_log_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "latency", "--spans", "x", "--endpoint", "h:1"]) == 2
    assert "--spans excludes" in capsys.readouterr().err


def test_a_period_that_is_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "latency", "--spans", "x", "--per", "often"]) == 2
    assert "--per 'often' is not a time" in " ".join(capsys.readouterr().err.split())


def test_every_stage_that_our_processes_report_has_its_place() -> None:
    assert tuple(OURS) == NAMES
    assert [stage for stage in STAGES if stage in OURS.values()] == list(OURS.values())

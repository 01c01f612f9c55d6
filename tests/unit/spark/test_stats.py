"""`whimbrel spark stats` before Spark starts: what is read, and what is refused."""

from pathlib import Path

import pytest
import typer

from whimbrel.cli.main import main
from whimbrel.cli.spark.inputs import parse_duration, source_options, topic_names
from whimbrel.spark.jobs.dataframes import POINTS_MAX, step_for


def test_a_source_becomes_options_of_the_format(tmp_path: Path) -> None:
    everything = {"subscribePattern": ".*"}
    assert source_options("h:1", None, "", None) == {"servers": "h:1", **everything}
    assert source_options("", tmp_path, "", None) == {"store": str(tmp_path), **everything}
    assert source_options("", None, "s3://bucket/a", None) == {"archive": "s3://bucket/a", **everything}
    chosen = source_options("h:1", None, "", ["orders, bills", "more"])
    assert chosen == {"servers": "h:1", "subscribe": "orders,bills,more"}
    assert topic_names(None) == ()


def test_the_environment_names_the_cluster_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHIMBREL_ENDPOINT", "127.0.0.1:1")
    assert source_options("", None, "", None)["servers"] == "127.0.0.1:1"


def test_two_sources_and_a_store_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="--endpoint and --archive exclude each other"):
        source_options("h:1", None, "root", None)
    with pytest.raises(typer.BadParameter, match="there is no such folder"):
        source_options("", tmp_path / "nowhere", "", None)


def test_without_a_cluster_the_job_could_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WHIMBREL_ENDPOINT", raising=False)
    monkeypatch.setenv("WHIMBREL_DEV_DIR", str(tmp_path))
    assert main(["spark", "stats"]) == 2  # 1 would say that it ran and found something
    assert "start one with `whimbrel dev`" in capsys.readouterr().err


def test_a_page_that_can_not_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "a.html"):
        assert main(["spark", "stats", "--endpoint", "h:1", "--html", str(place)]) == 2
        assert "name a file in a folder that is there" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("5m", 300), ("2 h", 7200), ("1D", 86_400)])
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration("--per", text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "5", "-1m", "1w", "1.5h"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"--per .* is not a time such as"):
        parse_duration("--per", text)


def test_a_range_of_time_is_drawn_in_a_bounded_number_of_points() -> None:
    assert step_for(0, 0) == 1
    for span in (100, 3600, 86_400, 30 * 86_400, 3 * 365 * 86_400):
        assert span / step_for(0, span) <= POINTS_MAX
    assert step_for(0, 86_400) == 900

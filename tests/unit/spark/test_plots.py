"""Pages of charts, without Spark: they open offline, and hold no more than they say."""

import builtins
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")

from plotly.offline import get_plotlyjs

from whimbrel.spark import plots
from whimbrel.spark.plots import HeatMap, LineChart, NoPlotly, heat_figure, lines_figure, page

HOUR = 3600


def own_part(path: Path) -> str:
    """Return a page without plotly's script."""
    content = path.read_text(encoding="utf-8")
    assert get_plotlyjs() in content
    return content.replace(get_plotlyjs(), "")


def test_a_page_has_all_inside_and_loads_nothing(tmp_path: Path) -> None:
    lines = LineChart(title="rates", unit="1/s", series={"orders": [(0, 1.0), (60, None), (120, 2.5)]})
    heat = HeatMap(title="hours", unit="messages", rows=["q0"], cells={("q0", 0): 3.0}, step_s=HOUR)
    page(tmp_path / "out.html", "A page", [lines, heat])
    whole, ours = (tmp_path / "out.html").read_text(encoding="utf-8"), own_part(tmp_path / "out.html")
    assert 'src="http' not in whole
    assert not re.search(r"<link|<img|<iframe|src=|href=|@import|https?://", ours)
    assert ours.count("Plotly.newPlot") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    evil = '</script><a href="http://x">&'
    page(tmp_path / "out.html", evil, [LineChart(title=evil, unit=evil, series={evil: [(0, 1.0)]})])
    ours = own_part(tmp_path / "out.html")
    assert "</script><a" not in ours
    assert 'href="http' not in ours
    assert ours.count("<script") == ours.count("</script>")


def test_a_page_without_charts_says_so(tmp_path: Path) -> None:
    page(tmp_path / "out.html", "Empty", [])
    assert "nothing to show" in own_part(tmp_path / "out.html")


def test_lines_beyond_the_bound_are_left_out_and_counted() -> None:
    series = {f"t{number}": [(0.0, 1.0)] for number in range(plots.SERIES_MAX + 6)}
    figure = lines_figure(LineChart(title="rates", unit="", series=series))
    assert [line.name for line in figure.data] == list(series)[: plots.SERIES_MAX]
    assert f"the first {plots.SERIES_MAX} of {plots.SERIES_MAX + 6}" in figure.layout.title.text


def test_a_heat_map_has_a_column_for_each_step_also_where_nothing_was() -> None:
    cells = {("a", 0): 1.0, ("b", 3 * HOUR): 2.0}
    figure = heat_figure(HeatMap(title="t", unit="n", rows=["a", "b"], cells=cells, step_s=HOUR))
    assert list(figure.data[0].x) == [f"1970-01-01 0{hour}:00:00.000" for hour in range(4)]
    assert [list(row) for row in figure.data[0].z] == [[1.0, None, None, None], [None, None, None, 2.0]]


def test_a_heat_map_keeps_the_newest_steps() -> None:
    count = plots.COLUMNS_MAX + 5
    cells = {("a", hour * HOUR): float(hour) for hour in range(count)}
    figure = heat_figure(HeatMap(title="t", unit="n", rows=["a"], cells=cells, step_s=HOUR))
    assert list(figure.data[0].z[0]) == [float(hour) for hour in range(5, count)]
    assert f"the last {plots.COLUMNS_MAX} of {count} steps" in figure.layout.title.text


def test_without_plotly_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "plotly":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NoPlotly, match=r"--html needs pip install .whimbrel\[spark\]."):
        page(tmp_path / "out.html", "", [])

"""Pages of charts, without Spark: they open offline, and hold no more than they say."""

import builtins
import itertools
import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")

from plotly.offline import get_plotlyjs

from whimbrel.spark import plots
from whimbrel.spark.plots import (
    DARK,
    LIGHT,
    HeatMap,
    LineChart,
    NoPlotly,
    Scheme,
    heat_figure,
    lines_figure,
    page,
)

HOUR = 3600
CONTRAST_MIN = 3.0  # of graphics, by WCAG 2.1
APART_MIN = 25.0  # between two colours of lines, in CIELAB; one of 10 is seen at a glance
# What is seen without the cones for red, green and blue, of linear RGB (Machado, Oliveira, Fernandes 2009).
SIGHTS = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
    ),
    "no green": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881),
    ),
    "no blue": (
        (1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900),
    ),
}  # fmt: skip
XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.95047, 1.0, 1.08883)


def linear(colour: str) -> list[float]:
    """Return a colour as linear RGB."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def times(matrix: Any, vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def lab(rgb: list[float]) -> tuple[float, float, float]:
    """Return linear RGB as CIELAB."""
    x, y, z = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (
            value / white
            for value, white in zip(
                times(XYZ, [min(max(each, 0.0), 1.0) for each in rgb]), WHITE, strict=True
            )
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def contrast(one: str, other: str) -> float:
    low, high = sorted(times(XYZ, linear(colour))[1] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


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
    assert list(figure.data[0].x) == [f"1970-01-01 0{hour}:00:00.000" for hour in range(5)]  # borders
    assert [list(row) for row in figure.data[0].z] == [[1.0, None, None, None], [None, None, None, 2.0]]


def seconds(axis: Any) -> list[float]:
    """Return the ends of an axis of time."""
    return [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in axis.range]


def test_one_hour_is_shown_as_one_hour() -> None:
    at = 8 * HOUR
    heat = heat_figure(HeatMap(title="t", unit="n", rows=["a"], cells={("a", at): 3.0}, step_s=HOUR))
    assert list(heat.data[0].x) == ["1970-01-01 08:00:00.000", "1970-01-01 09:00:00.000"]
    begin, end = seconds(heat.layout.xaxis)
    assert at - HOUR / 10 < begin < at
    assert at + HOUR < end < at + 1.1 * HOUR
    assert heat.data[0].customdata[0][0] == "1970-01-01 08:00:00"


def test_one_moment_is_shown_within_a_minute() -> None:
    figure = lines_figure(LineChart(title="t", unit="n", series={"a": [(100.0, 3.0)]}))
    assert seconds(figure.layout.xaxis) == [70.0, 130.0]
    assert figure.layout.yaxis.rangemode == "tozero"
    assert lines_figure(LineChart(title="t", unit="n", series={})).layout.xaxis.range is None


def test_few_cells_show_their_values_and_colours_begin_at_0() -> None:
    few = heat_figure(HeatMap(title="t", unit="n", rows=["a"], cells={("a", 0): 1.0}, step_s=HOUR))
    assert (few.data[0].texttemplate, few.data[0].zmin) == ("%{text}", 0)
    assert [list(row) for row in few.data[0].text] == [["1"]]
    cells = {("a", hour * HOUR): 1.0 for hour in range(plots.CELL_TEXTS_MAX + 1)}
    assert (
        heat_figure(HeatMap(title="t", unit="n", rows=["a"], cells=cells, step_s=HOUR)).data[0].texttemplate
        is None
    )


def test_a_line_is_broken_where_a_step_has_no_point() -> None:
    points = [(0.0, 1.0), (60.0, 2.0), (240.0, 3.0)]
    line = lines_figure(LineChart(title="t", unit="ms", series={"a": points}, step_s=60)).data[0]
    assert list(line.y) == [1.0, 2.0, None, 3.0]
    assert not line.connectgaps
    assert [text[14:19] for text in line.x] == ["00:00", "01:00", "02:00", "04:00"]
    whole = lines_figure(LineChart(title="t", unit="ms", series={"a": points})).data[0]
    assert list(whole.y) == [1.0, 2.0, 3.0]


def test_a_legend_has_its_place_below_however_many_lines_there_are() -> None:
    one = lines_figure(LineChart(title="t", unit="n", series={"a": [(0.0, 1.0)]})).layout
    series = {f"t{number}": [(0.0, 1.0)] for number in range(plots.SERIES_MAX)}
    many = lines_figure(LineChart(title="t", unit="n", series=series)).layout
    assert (one.legend.orientation, one.showlegend) == ("h", True)
    assert one.legend.y < 0
    assert many.height - one.height == plots.LEGEND_LINE_PX * (plots.SERIES_MAX - 1)


def test_what_a_page_is_about_stands_below_its_title(tmp_path: Path) -> None:
    page(tmp_path / "out.html", "Messages of a cluster", [], ["3 messages <b>", "Read at noon."])
    ours = own_part(tmp_path / "out.html")
    assert "<h1>Messages of a cluster</h1>\n<p>3 messages &lt;b&gt;</p>\n<p>Read at noon.</p>" in ours


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
    with pytest.raises(NoPlotly, match=r"--html needs the extra `spark`"):
        page(tmp_path / "out.html", "", [])


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_stand_out_from_their_background(scheme: Scheme) -> None:
    assert contrast(scheme.text, scheme.paper) >= 7
    for colour in scheme.lines:
        assert contrast(colour, scheme.paper) >= CONTRAST_MIN - 0.05, colour


@pytest.mark.parametrize("sight", list(SIGHTS))
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_of_lines_are_told_apart_by_everybody(scheme: Scheme, sight: str) -> None:
    seen = {colour: lab(times(SIGHTS[sight], linear(colour))) for colour in scheme.lines}
    for one, other in itertools.combinations(scheme.lines, 2):
        assert math.dist(seen[one], seen[other]) >= APART_MIN, (one, other)


def drawn(path: Path) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return data and layout of each chart as a page hands them to plotly."""
    decode = json.JSONDecoder().raw_decode
    found = []
    for part in own_part(path).split("Plotly.newPlot(")[1:]:
        data, end = decode(part, part.index("["))
        layout, _ = decode(part, part.index("{", end))
        found.append((data, layout))
    return found


def test_no_two_lines_of_a_page_look_alike(tmp_path: Path) -> None:
    series = {f"t{number}": [(0.0, 1.0 + number)] for number in range(plots.SERIES_MAX)}
    page(tmp_path / "out.html", "A page", [LineChart(title="t", unit="n", series=series)])
    ((lines, _),) = drawn(tmp_path / "out.html")
    looks = [(line["line"]["color"], line["line"]["dash"], line["marker"]["symbol"]) for line in lines]
    assert len(set(looks)) == plots.SERIES_MAX
    assert len({look[1:] for look in looks[:4]}) == 4  # the first ones differ without their colours, too
    assert all(line["marker"]["color"] == line["line"]["color"] for line in lines)
    assert {look[0] for look in looks} == set(LIGHT.lines)
    assert len(DARK.lines) == len(LIGHT.lines)  # so that dark lines are no more alike than light ones


def test_a_page_follows_the_choice_of_light_or_dark(tmp_path: Path) -> None:
    page(tmp_path / "out.html", "A page", [LineChart(title="t", unit="n", series={"a": [(0.0, 1.0)]})])
    ours = own_part(tmp_path / "out.html")
    assert "color-scheme: light dark" in ours and "@media (prefers-color-scheme: dark)" in ours
    schemes, _ = json.JSONDecoder().raw_decode(ours, ours.index("schemes = ") + len("schemes = "))
    assert {name: one["lines"] for name, one in schemes.items()} == {
        "light": list(LIGHT.lines), "dark": list(DARK.lines),
    }  # fmt: skip
    assert schemes["dark"]["layout"]["paper_bgcolor"] == DARK.paper
    ((_, layout),) = drawn(tmp_path / "out.html")
    assert (layout["paper_bgcolor"], layout["font"]["color"]) == (LIGHT.paper, LIGHT.text)


@pytest.mark.parametrize(("large", "kind"), [(999.0, None), (1000.0, "log")])
def test_counts_a_thousandfold_apart_are_seen_on_a_logarithmic_scale(
    tmp_path: Path, large: float, kind: str | None
) -> None:
    series: dict[str, Any] = {"large": [(0.0, large), (60.0, 0.0)], "small": [(0.0, 1.0), (60.0, None)]}
    cells = {("a", 0): large, ("b", 0): 1.0, ("b", HOUR): 0.0}
    page(
        tmp_path / "out.html",
        "A page",
        [
            LineChart(title="t", unit="messages", series=series),
            HeatMap(title="t", unit="messages", rows=["a", "b"], cells=cells, step_s=HOUR),
        ],
    )
    (_, layout), ((heat,), _) = drawn(tmp_path / "out.html")
    assert layout["yaxis"].get("type") == kind
    assert ("logarithmic" in layout["yaxis"]["title"]["text"]) is (kind == "log")
    assert heat["text"] == [[f"{large:g}", ""], ["1", "0"]]  # values are told as they are
    if kind == "log":
        assert heat["z"] == [[3.0, None], [0.0, None]]
        assert heat["colorbar"]["ticktext"] == ["1", "10", "100", "1,000"]
    else:
        assert heat["z"] == [[large, None], [1.0, 0.0]] and "tickvals" not in heat["colorbar"]

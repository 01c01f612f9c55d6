"""Charts on one page: a single HTML file without external resources, to be opened offline or mailed.

    page("orders.html", "Messages of 127.0.0.1:8081", [LineChart(...), HeatMap(...)], ["180 messages, ..."])

Charts are drawn by plotly, whose script (4.8 MB) is part of the file. Charts show aggregates, never rows: at
most the first `SERIES_MAX` lines, or the first `ROWS_MAX` by `COLUMNS_MAX` cells that the caller gives; the
title says how many were left out. Times are seconds since the epoch and are shown in UTC.

**Nothing is told by colour alone, and what is small is seen beside what is large.** Each line has its own
pair of colour and stroke. The colours of a scheme stand out from its background, and from each other also for
people who do not see red, green or blue: a test computes both. The page follows the reader's choice of light
or dark. Values of which the greatest is `SPREAD` times the smallest, or more, have a logarithmic scale.
"""

import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = [
    "COLUMNS_MAX",
    "DARK",
    "LIGHT",
    "ROWS_MAX",
    "SERIES_MAX",
    "SPREAD",
    "HeatMap",
    "LineChart",
    "NoPlotly",
    "Scheme",
    "check_plotly",
    "page",
]

SERIES_MAX = 24  # lines: as many as there are pairs of colour and stroke
ROWS_MAX = 256  # of a heat map: queues
COLUMNS_MAX = 31 * 24  # of a heat map: the hours of a month
LINES_HEIGHT_PX, CELL_PX, FRAME_PX = 420, 18, 180
LEGEND_LINE_PX = 22  # the legend stands below a chart, since beside it takes half of a narrow window
CELL_TEXTS_MAX = 400  # a heat map of no more cells shows their values: colours do not tell 1 from 3
AXIS_MARGIN = 0.03  # of an axis of time, on both sides
AXIS_S_MIN = 60.0  # what it shows at least: of one moment, plotly would show fractions of milliseconds
CONFIG = {"displaylogo": False, "responsive": True}
SPREAD = 1000.0  # from here on the smaller values would lie on the axis; three decades are seen well
# Dashes of a line and the shape of its points: what tells lines apart without colours.
STROKES = (("solid", "circle"), ("dash", "square"), ("dot", "diamond"), ("dashdot", "triangle-up"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The colours of a page, as `#rrggbb`; those of lines in the order in which lines take them."""

    paper: str
    text: str
    grid: str
    lines: tuple[str, ...]


LIGHT = Scheme(
    paper="#ffffff",
    text="#1f2328",
    grid="#d8dee4",
    lines=("#648FFF", "#B8860B", "#000000", "#EE6677", "#332288", "#882255"),
)
DARK = Scheme(
    paper="#111417",
    text="#e6edf3",
    grid="#3d444d",
    lines=("#56B4E9", "#FFB000", "#BBBBBB", "#D41159", "#785EF0", "#8F5A00"),
)
SCRIPT = """\
const schemes = SCHEMES, dark = window.matchMedia("(prefers-color-scheme: dark)");
function paint() {
  const scheme = schemes[dark.matches ? "dark" : "light"];
  for (const chart of document.querySelectorAll(".plotly-graph-div")) {
    const lines = [...chart.data.keys()].filter(place => chart.data[place].type === "scatter");
    const colours = lines.map(place => scheme.lines[place % scheme.lines.length]);
    if (lines.length) Plotly.restyle(chart, {"line.color": colours, "marker.color": colours}, lines);
    Plotly.relayout(chart, scheme.layout);
  }
}
dark.addEventListener("change", paint);
paint();
"""

ChartPoints = Sequence[tuple[float, float | None]]  # (seconds since the epoch, value); None leaves a gap


class NoPlotly(ImportError):
    """plotly is not installed; the text says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Values over time, a line for each name; the most important ones first.

    Attributes:
        step_s: from one point of a line to the next, where nothing is between; a line is broken where one is
            missing. 0: points may be any time apart.
    """

    title: str
    unit: str
    series: Mapping[str, ChartPoints]
    step_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A value for each row and time; `cells` has the known ones by (row, seconds)."""

    title: str
    unit: str
    rows: Sequence[str]
    cells: Mapping[tuple[str, int], float]
    step_s: int


def check_plotly() -> None:
    """Raise NoPlotly if plotly is missing, so that this is known before the work."""
    try:
        import plotly  # noqa: F401
    except ImportError:
        raise NoPlotly(
            "plotly is missing: --html needs the extra `spark`,"
            ' as in pip install ".[spark]" in a clone of whimbrel'
        ) from None


def page(path: Path, title: str, charts: Sequence[LineChart | HeatMap], about: Sequence[str] = ()) -> None:
    """Write a page; it appears when it is complete.

    Args:
        path: the file.
        title: what the page shows, and of what.
        charts: from top to bottom.
        about: lines below the title, such as when it was read, and totals.

    Raises:
        NoPlotly: plotly is missing.
        OSError: the file can't be written.
    """
    check_plotly()
    from plotly.offline import get_plotlyjs

    figures = [
        lines_figure(chart) if isinstance(chart, LineChart) else heat_figure(chart) for chart in charts
    ]
    parts = [figure.to_html(full_html=False, include_plotlyjs=False, config=CONFIG) for figure in figures]
    parts += [f"<script>{SCRIPT.replace('SCHEMES', schemes_text())}</script>"] if parts else []
    name = html.escape(title)
    content = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f"<style>{style_text()}</style>\n"
        f"<script>{get_plotlyjs()}</script></head>\n<body><h1>{name}</h1>\n"
        + "".join(f"<p>{html.escape(line)}</p>\n" for line in about)
        + ("\n".join(parts) or "<p>There is nothing to show.</p>")
        + "\n</body></html>\n"
    )
    temporary = path.with_name(f"_{path.name}.{os.getpid()}")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


def lines_figure(chart: LineChart) -> Any:
    """Return the figure of a line chart."""
    from plotly.graph_objects import Figure, Scatter

    shown = [(name, broken(points, chart.step_s)) for name, points in list(chart.series.items())[:SERIES_MAX]]
    figure = Figure(
        [
            Scatter(
                x=[clock(at) for at, _ in points],
                y=[value for _, value in points],
                name=html.escape(name),
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                marker={"color": colour, "symbol": symbol, "size": 6},
            )
            for place, (name, points) in enumerate(shown)
            for colour, dash, symbol in (stroke(place),)
        ]
    )
    times = [at for _, points in shown for at, _ in points]
    height_px = LINES_HEIGHT_PX + LEGEND_LINE_PX * len(shown)
    unit = chart.unit
    if spread(value for _, points in shown for _, value in points if value is not None):
        figure.update_yaxes(type="log", dtick=1, exponentformat="none")
        unit = f"{unit} (logarithmic; 0 is not drawn)"
    else:
        figure.update_yaxes(rangemode="tozero")
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "yanchor": "top", "y": -0.25, "xanchor": "left", "x": 0}
    )
    title = left_out(chart.title, len(chart.series), SERIES_MAX)
    return laid_out(figure, title, unit, height_px, times)


def stroke(place: int) -> tuple[str, str, str]:
    """Return colour, dashes and shape of the points of a line; no two of `SERIES_MAX` have the same."""
    turn = math.lcm(len(LIGHT.lines), len(STROKES))  # after so many lines the pairs would come again
    dash, symbol = STROKES[(place + place // turn) % len(STROKES)]
    return LIGHT.lines[place % len(LIGHT.lines)], dash, symbol


def spread(values: Iterable[float]) -> bool:
    """Return whether values are so far apart that the small ones are seen on a logarithmic scale only."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) >= SPREAD * min(positive)


def broken(points: ChartPoints, step_s: int) -> ChartPoints:
    """Return the points of a line with a gap wherever one of the step is missing; all points for step 0."""
    found: list[tuple[float, float | None]] = []
    for at, value in points:
        if step_s and found and at - found[-1][0] > step_s:
            found.append((found[-1][0] + step_s, None))
        found.append((at, value))
    return found


def heat_figure(chart: HeatMap) -> Any:
    """Return the figure of a heat map: all steps from the first to the last, the newest if there are many."""
    from plotly.graph_objects import Figure, Heatmap

    rows = list(chart.rows)[:ROWS_MAX]
    times = sorted({at for _, at in chart.cells})
    columns = list(range(times[0], times[-1] + 1, chart.step_s)) if times else []
    hidden = max(len(columns) - COLUMNS_MAX, 0)
    columns = columns[hidden:]
    # The borders of the columns: from a single middle, plotly could not tell how wide a column is.
    borders = [*columns, columns[-1] + chart.step_s] if columns else []
    values = [[chart.cells.get((row, at)) for at in columns] for row in rows]
    bar: dict[str, Any] = {"title": html.escape(chart.unit)}
    known = [value for row in values for value in row if value is not None]
    least = 0.0
    colours = values
    if spread(known):
        positive = [value for value in known if value > 0]
        first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        powers = range(first, last + 1)
        bar |= {"tickvals": list(powers), "ticktext": [f"{10.0**power:,g}" for power in powers]}
        bar["title"] += "<br>(logarithmic)"
        colours = [[math.log10(value) if value else None for value in row] for row in values]
        least = powers[0]
    figure = Figure(
        Heatmap(
            x=[clock(at) for at in borders],
            y=[html.escape(row) for row in rows],
            z=colours,
            zmin=least,
            colorbar=bar,
            colorscale="Viridis",
            customdata=[[clock(at)[:-4] for at in columns] for _ in rows],
            text=[["" if value is None else f"{value:g}" for value in row] for row in values],
            hovertemplate="%{y}<br>from %{customdata}<br>%{text} "
            + html.escape(chart.unit)
            + "<extra></extra>",
            texttemplate="%{text}" if len(rows) * len(columns) <= CELL_TEXTS_MAX else None,
        )
    )
    title = left_out(chart.title, len(chart.rows), ROWS_MAX)
    if hidden:
        title += f" (the last {COLUMNS_MAX} of {hidden + COLUMNS_MAX} steps)"
    figure.update_yaxes(type="category", autorange="reversed")
    return laid_out(figure, title, "", FRAME_PX + CELL_PX * len(rows), borders)


def laid_out(figure: Any, title: str, unit: str, height_px: int, times: Sequence[float]) -> Any:
    """Return a figure with the layout that all figures have; `times` are those that it shows."""
    figure.update_layout(
        title=html.escape(title),
        height=height_px,
        template="plotly_white",
        **{name.replace(".", "_"): value for name, value in layout_of(LIGHT).items()},
        yaxis_title=html.escape(unit),
        xaxis_title="UTC",
    )
    figure.update_xaxes(type="date", range=axis_range(times))
    return figure


def layout_of(scheme: Scheme) -> dict[str, str]:
    """Return what a scheme says of a figure's layout, by plotly's names with dots."""
    return {
        "paper_bgcolor": scheme.paper,
        "plot_bgcolor": scheme.paper,
        "font.color": scheme.text,
        "xaxis.gridcolor": scheme.grid,
        "yaxis.gridcolor": scheme.grid,
    }


def schemes_text() -> str:
    """Return both schemes for the page's script, as JSON."""
    named = {"light": LIGHT, "dark": DARK}
    return json.dumps({name: {"lines": one.lines, "layout": layout_of(one)} for name, one in named.items()})


def style_text() -> str:
    """Return the page's style sheet."""
    dark = f"body {{ background: {DARK.paper}; color: {DARK.text} }}"
    return (
        ":root { color-scheme: light dark }"
        f" body {{ font-family: sans-serif; margin: 1em; background: {LIGHT.paper}; color: {LIGHT.text} }}"
        f" @media (prefers-color-scheme: dark) {{ {dark} }}"
    )


def axis_range(times: Sequence[float]) -> list[str] | None:
    """Return where an axis of time begins and ends; None without times."""
    if not times:
        return None
    first, last = min(times), max(times)
    margin = max((last - first) * AXIS_MARGIN, (AXIS_S_MIN - (last - first)) / 2)
    return [clock(first - margin), clock(last + margin)]


def left_out(title: str, count: int, count_max: int) -> str:
    """Return the title, with how many are shown if that is not all."""
    return title if count <= count_max else f"{title} (the first {count_max} of {count})"


def clock(at_s: float) -> str:
    """Return a time as text for plotly, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

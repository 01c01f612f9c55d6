"""Charts on one page: a single HTML file without external resources, to be opened offline or mailed.

    page("orders.html", "Messages of 127.0.0.1:8081", [LineChart(...), HeatMap(...)], ["180 messages, ..."])

Charts are drawn by plotly, whose script (4.8 MB) is part of the file. Charts show aggregates, never rows: at
most the first `SERIES_MAX` lines, or the first `ROWS_MAX` by `COLUMNS_MAX` cells that the caller gives; the
title says how many were left out. Times are seconds since the epoch and are shown in UTC.
"""

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = [
    "COLUMNS_MAX",
    "ROWS_MAX",
    "SERIES_MAX",
    "HeatMap",
    "LineChart",
    "NoPlotly",
    "check_plotly",
    "page",
]

SERIES_MAX = 24  # lines: colours of more could not be distinguished
ROWS_MAX = 256  # of a heat map: queues
COLUMNS_MAX = 31 * 24  # of a heat map: the hours of a month
LINES_HEIGHT_PX, CELL_PX, FRAME_PX = 420, 18, 180
LEGEND_LINE_PX = 22  # the legend stands below a chart, since beside it takes half of a narrow window
CELL_TEXTS_MAX = 400  # a heat map of no more cells shows their values: colours do not tell 1 from 3
AXIS_MARGIN = 0.03  # of an axis of time, on both sides
AXIS_S_MIN = 60.0  # what it shows at least: of one moment, plotly would show fractions of milliseconds
CONFIG = {"displaylogo": False, "responsive": True}

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
    name = html.escape(title)
    content = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f"<style>body {{ font-family: sans-serif; margin: 1em }}</style>\n"
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
                marker={"size": 5},
            )
            for name, points in shown
        ]
    )
    times = [at for _, points in shown for at, _ in points]
    height_px = LINES_HEIGHT_PX + LEGEND_LINE_PX * len(shown)
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "yanchor": "top", "y": -0.25, "xanchor": "left", "x": 0}
    )
    title = left_out(chart.title, len(chart.series), SERIES_MAX)
    return laid_out(figure, title, chart.unit, height_px, times)


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
    figure = Figure(
        Heatmap(
            x=[clock(at) for at in borders],
            y=[html.escape(row) for row in rows],
            z=[[chart.cells.get((row, at)) for at in columns] for row in rows],
            zmin=0,
            colorbar={"title": html.escape(chart.unit)},
            colorscale="Viridis",
            customdata=[[clock(at)[:-4] for at in columns] for _ in rows],
            hovertemplate="%{y}<br>from %{customdata}<br>%{z} " + html.escape(chart.unit) + "<extra></extra>",
            texttemplate="%{z}" if len(rows) * len(columns) <= CELL_TEXTS_MAX else None,
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
        yaxis_title=html.escape(unit),
        xaxis_title="UTC",
    )
    figure.update_xaxes(type="date", range=axis_range(times))
    return figure


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

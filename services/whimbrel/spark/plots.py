"""Charts on one page: a single HTML file without external resources, to be opened offline or mailed.

    page("orders.html", "Rates", [Lines(...), HeatMap(...)])

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
CONFIG = {"displaylogo": False, "responsive": True}

ChartPoints = Sequence[tuple[float, float | None]]  # (seconds since the epoch, value); None leaves a gap


class NoPlotly(ImportError):
    """plotly is not installed; the text says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Values over time, a line for each name; the most important ones first."""

    title: str
    unit: str
    series: Mapping[str, ChartPoints]


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
        raise NoPlotly('plotly is missing: --html needs pip install "whimbrel[spark]"') from None


def page(path: Path, title: str, charts: Sequence[LineChart | HeatMap]) -> None:
    """Write a page; it appears when it is complete.

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
        + ("\n".join(parts) or "<p>There is nothing to show.</p>")
        + "\n</body></html>\n"
    )
    temporary = path.with_name(f"_{path.name}.{os.getpid()}")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


def lines_figure(chart: LineChart) -> Any:
    """Return the figure of a line chart."""
    from plotly.graph_objects import Figure, Scatter

    shown = list(chart.series.items())[:SERIES_MAX]
    figure = Figure(
        [
            Scatter(
                x=[clock(at) for at, _ in points],
                y=[value for _, value in points],
                name=html.escape(name),
                mode="lines+markers",
                marker={"size": 4},
            )
            for name, points in shown
        ]
    )
    return laid_out(figure, left_out(chart.title, len(chart.series), SERIES_MAX), chart.unit, LINES_HEIGHT_PX)


def heat_figure(chart: HeatMap) -> Any:
    """Return the figure of a heat map: all steps from the first to the last, the newest if there are many."""
    from plotly.graph_objects import Figure, Heatmap

    rows = list(chart.rows)[:ROWS_MAX]
    times = sorted({at for _, at in chart.cells})
    columns = list(range(times[0], times[-1] + 1, chart.step_s)) if times else []
    hidden = max(len(columns) - COLUMNS_MAX, 0)
    columns = columns[hidden:]
    figure = Figure(
        Heatmap(
            x=[clock(at) for at in columns],
            y=[html.escape(row) for row in rows],
            z=[[chart.cells.get((row, at)) for at in columns] for row in rows],
            colorbar={"title": html.escape(chart.unit)},
            colorscale="Viridis",
        )
    )
    title = left_out(chart.title, len(chart.rows), ROWS_MAX)
    if hidden:
        title += f" (the last {COLUMNS_MAX} of {hidden + COLUMNS_MAX} steps)"
    figure.update_yaxes(type="category", autorange="reversed")
    return laid_out(figure, title, "", FRAME_PX + CELL_PX * len(rows))


def laid_out(figure: Any, title: str, unit: str, height_px: int) -> Any:
    """Return a figure with the layout that all figures have."""
    figure.update_layout(
        title=html.escape(title),
        height=height_px,
        template="plotly_white",
        yaxis_title=html.escape(unit),
        xaxis_title="UTC",
        showlegend=True,
    )
    figure.update_xaxes(type="date")
    return figure


def left_out(title: str, count: int, count_max: int) -> str:
    """Return the title, with how many are shown if that is not all."""
    return title if count <= count_max else f"{title} (the first {count_max} of {count})"


def clock(at_s: float) -> str:
    """Return a time as text for plotly, in UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

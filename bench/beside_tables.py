"""The tables of `beside.py`: all systems side by side, what the lane was to reach, CPU by process."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from raw import READS, SENDS, Row

BY_REMOTING = ("4x", "4x-lane")  # ours, asked by the remoting protocol
WITH_LANE = ("lane", "4x-lane")
OURS = ("python", "lane", *BY_REMOTING)
SYSTEMS = (*OURS, "4.9.3", "5.3.3", "proxy")
MODES = ("none", "slave", "sync", "flush")
ORDER = ("", *MODES)
LONG_NAMES = {
    "python": "whimbrel",
    "lane": "whimbrel, lane",
    "4x": "whimbrel remoting",
    "4x-lane": "whimbrel remoting, lane",
    "4.9.3": "4.9.3 remoting",
    "5.3.3": "5.3.3 remoting",
    "proxy": "5.3.3 proxy",
}


def median(rows: list[Row], key: str) -> float:
    """Return the median of a figure over the rounds."""
    return float(statistics.median(row[key] for row in rows))


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table; "" without lines."""
    if not lines:
        return ""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def cell(rows: list[Row]) -> str:
    """Return what stands in the table for a system at a point."""
    text = f"**{median(rows, 'rate'):,.0f}**, {median(rows, 'p50'):.2f} / {median(rows, 'p99'):.2f}"
    text += f", {median(rows, 'all_us'):.1f}"
    lost = [each for row in rows for each in row["lost"]]
    errors = sum(row["errors"] for row in rows)
    if any(row.get("empty", 0) for row in rows):
        text += " (ran dry)"
    return (
        text
        + (f", errors {errors}" if errors else "")
        + (f", NOT STORED = ACKNOWLEDGED {lost}" if lost else "")
    )


def grid(rows: list[Row], stage: str, shown: Callable[[list[Row]], str]) -> str:
    """Return the table of a stage with a column for each system."""
    rows = [row for row in rows if row["stage"] == stage]
    systems = [name for name in SYSTEMS if any(row["system"] == name for row in rows)]
    keys = dict.fromkeys((row.get("mode", ""), row.get("point", "")) for row in rows)
    order = [*SENDS, *READS]
    lines = []
    for key in sorted(
        keys, key=lambda key: ORDER.index(key[0]) * 100 + (order.index(key[1]) if key[1] in order else 0)
    ):
        some = [
            [
                row
                for row in rows
                if (row.get("mode", ""), row.get("point", ""), row["system"]) == (*key, name)
            ]
            for name in systems
        ]
        lines.append([*key, *(shown(each) if each else "-" for each in some)])
    return markdown(["mode", "point", *(LONG_NAMES[name] for name in systems)], lines)


def overview(rows: list[Row], stage: str) -> str:
    """Return the table of all systems."""
    return grid(rows, stage, cell)


def by_process(rows: list[Row]) -> str:
    """Return the table of CPU by process; the nameserver's is part of the sum alone."""
    kinds = ("master", "master's replicator", "slave", "slave's replicator")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if "us" in row:
            groups.setdefault((row["mode"], row["point"], row["system"]), []).append(row)
    lines = []
    for mode in MODES:
        for point in SENDS | READS:
            for name in SYSTEMS:
                if some := groups.get((mode, point, name)):
                    cells = [
                        f"{statistics.median(row['us'][kind] for row in some):.1f}"
                        if kind in some[0]["us"]
                        else "-"
                        for kind in kinds
                    ]
                    lines.append([mode, point, LONG_NAMES[name], f"{median(some, 'all_us'):.1f}", *cells])
    return markdown(["mode", "point", "system", "all", *kinds], lines)


@dataclass(frozen=True)
class Target:
    """What the lane is to reach; `beside`: so many times what that system does at the same point."""

    mode: str
    point: str
    figure: str
    aim: float
    beside: str = ""

    def line(self, rows: list[Row]) -> list[str]:
        """Return its line of the table; none where it was not measured."""
        here, there = (
            [
                row
                for row in rows
                if "us" in row
                and (row.get("mode"), row.get("point"), row["system"]) == (self.mode, self.point, name)
            ]
            for name in ("lane", self.beside)
        )
        if not here or (self.beside and not there):
            return []
        got = self.of(here) / (self.of(there) if self.beside else 1)
        met = got >= self.aim if self.figure == "rate" else got <= self.aim
        sign = "at least" if self.figure == "rate" else "at most"
        unit = f" times {LONG_NAMES[self.beside]}" if self.beside else {"rate": "/s"}.get(self.figure, " us")
        what = "us of " + self.figure if self.figure in ("all", "master", "slave") else self.figure
        return [
            self.mode,
            self.point,
            what,
            f"{sign} {self.aim:,g}{unit}",
            f"{got:,.2f}",
            "yes" if met else "**no**",
        ]

    def of(self, rows: list[Row]) -> float:
        """Return the figure of a system."""
        if self.figure in ("master", "slave"):
            return float(statistics.median(row["us"][self.figure] for row in rows))
        return median(rows, "all_us" if self.figure == "all" else self.figure)


TARGETS = (
    Target("slave", "c32", "master", 6),
    Target("slave", "c32", "all", 10),
    Target("slave", "c32", "rate", 2, "4.9.3"),
    Target("slave", "c1", "master", 35),
    Target("slave", "c1", "all", 45),
    Target("slave", "c1", "rate", 1.9, "4.9.3"),
    Target("sync", "c1", "master", 80),
    Target("sync", "c1", "all", 150),
    Target("sync", "c1", "p50", 0.7, "4.9.3"),
    Target("sync", "c32", "master", 7),
    Target("sync", "c32", "all", 14),
    Target("sync", "c32", "rate", 2, "4.9.3"),
    Target("slave", "batch", "master", 2.5),
    Target("slave", "batch", "all", 6),
    Target("slave", "batch", "rate", 140_000),
    Target("none", "batch", "rate", 1, "4.9.3"),
    Target("none", "receive1", "master", 25),
    Target("none", "receive1", "rate", 3, "proxy"),
    Target("slave", "c32", "slave", 3),
    Target("none", "c256", "p99", 1, "4.9.3"),
    Target("slave", "c256", "p99", 1, "4.9.3"),
    Target("sync", "c256", "p99", 1, "4.9.3"),
)


def targets(rows: list[Row]) -> str:
    """Return the table of what the lane was to reach."""
    lines = [line for target in TARGETS if (line := target.line(rows))]
    return markdown(["mode", "point", "figure", "aim", "here", "met"], lines)


def shares(rows: list[Row]) -> str:
    """Return the table of the lane's share."""
    rows = [row for row in rows if row["stage"] == "share"]
    points = list(dict.fromkeys(row["point"] for row in rows))
    lines = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        found = {row["point"]: f"{row['share']:.2%}" for row in rows if row["mode"] == mode}
        lines.append([mode, *(found.get(point, "-") for point in points)])
    return markdown(["mode", *points], lines)


def tables(rows: list[Row]) -> str:
    """Return everything as Markdown."""
    facts = next((row for row in rows if row["stage"] == "facts"), {})
    parts = [str(facts.get("text", "")), ""]
    figures = [row for row in rows if row["stage"] != "facts"]
    for stage, title in (
        ("send", "Sends: messages/s, p50 / p99 in ms, us of all servers a message"),
        ("read", "Reads: the same; p50 and p99 are those of a receive or a pull"),
    ):
        if text := overview(figures, stage):
            parts += [f"**{title}**", "", text]
    if text := overview(figures, "sdk"):
        parts += ["**Official SDKs, sends of 1 KiB by so many threads: the same**", "", text]
    if text := grid(figures, "lag", lambda some: f"{median(some, 'p50'):.2f} / {median(some, 'p99'):.2f}"):
        parts += ["**Replication lag beside so many sends a second: p50 / p99 in ms**", "", text]
    if text := grid(
        figures,
        "catchup",
        lambda some: f"{median(some, 'from_start_s'):.2f} s, {median(some, 'gb_s'):.2f} GB/s",
    ):
        parts += [
            "**An empty slave: from its start until its queues are there; GB/s from the first entry on**",
            "",
            text,
        ]
    if text := targets(figures):
        parts += ["**What the lane was to reach**", "", text]
    if text := shares(figures):
        parts += [
            "**The lane's share of messages sent, or acknowledged; a connection's first calls are Python's**",
            "",
            text,
        ]
    if text := by_process(figures):
        parts += ["**CPU by process**", "", text]
    return "\n".join(parts)

"""The page of `beside.py`, docs/failovers-beside.md."""

import datetime
import os
import statistics
from collections.abc import Callable, Sequence

from chaos.rows import AIMS_S, AWAY_S, BOUND_S, FAULTS, Row
from chaos.sdks import PAUSE_MS

__all__ = ["page"]

NAMES = {"java": "Java", "python": "Python", "go": "Go", "nodejs": "Node.js"}
SYSTEMS = {"whimbrel": "whimbrel", "RocketMQ": "RocketMQ 5.3.3"}
NONE = f"none within {BOUND_S:.0f}"
ABOUT = (
    "Both have three members on this machine, which answer a send when more than half of them hold it. Ours:",
    "`--replication majority --flush sync`, one nameserver, which keeps who leads. RocketMQ in controller",
    "mode: one controller, one name server, `allAckInSyncStateSet=true`, `minInSyncReplicas=2`, asynchronous",
    "flush, and a proxy in cluster mode; all else by its defaults. Nameserver, name server, controller and",
    "proxy are never touched.",
    "",
    "The clients are the same, RocketMQ's official SDKs with their own settings: a producer, which sends one",
    "message after the other, and a simple consumer of each run all the time. Their access point is our",
    "nameserver, or RocketMQ's proxy. *Route* is the time from the fault until a new query of the route",
    "names another leader first (RocketMQ: until that of the name server has another master; the proxy tells",
    "its own address only). *New client* is the time until a Python SDK that is loaded, and starts with the",
    "fault, has a send acknowledged. *Next send* and *next receive* are the longest times without one of the",
    "running SDKs while the fault lasts. That is until all of these have gone on,",
    f"{AWAY_S:.0f} s at least, {BOUND_S:.0f} s at most.",
    "",
    f"All times are seconds, median / worst; producers pause for {PAUSE_MS / 1000:g} s after each send. The",
    f"machine has {os.cpu_count()} cores, for servers and clients together.",
)
FAULT_WORDS = {
    "kill -9": "the leader's processes: broker and replicator of ours, RocketMQ's broker",
    "hang": "SIGSTOP of the same",
    "partition": "nothing passes to or from the leader's ports, or between it and the name server and the"
    " controller; clients are cut off from it, too (`tests/chaos/forwarders.py`)",
}


def pair(values: Sequence[float | None]) -> str:
    """Return median and worst; what never came is worse than all else."""
    if not values:
        return "-"
    known = sorted(value for value in values if value is not None)
    missing = len(values) - len(known)
    if missing == len(values):
        return NONE
    if missing:
        return f"{', '.join(f'{each:.1f}' for each in known)}; {NONE} ({missing} of {len(values)})"
    return f"{statistics.median(known):.2f} / {known[-1]:.2f}"


def table(rows: Sequence[Row], columns: Sequence[tuple[str, Callable[[Sequence[Row]], str]]]) -> list[str]:
    """Return a table with a line for each fault and system."""
    lines = [
        f"| Fault | System | {' | '.join(name for name, _ in columns)} |",
        f"|---|---{'|---' * len(columns)}|",
    ]
    for fault in FAULTS:
        for system, name in SYSTEMS.items():
            if those := [row for row in rows if (row.fault, row.system) == (fault, system)]:
                cells = " | ".join(value(those) for _, value in columns)
                lines.append(f"| {fault} | {name} | {cells} |")
    return lines


def languages(rows: Sequence[Row]) -> list[str]:
    """Return the SDKs that were measured, in the order of the page."""
    return [name for name in NAMES if any(name in row.sends for row in rows)]


def round_by_round(rows: Sequence[Row]) -> list[str]:
    """Return a table of our sends with all rounds."""
    lines = [
        f"| Fault | {' | '.join(NAMES[name] for name in languages(rows))} |",
        f"|---{'|---' * len(languages(rows))}|",
    ]
    for fault in FAULTS:
        those = [row for row in rows if (row.fault, row.system) == (fault, "whimbrel")]
        cells = [", ".join(told(row, name) for row in those if name in row.sends) for name in languages(rows)]
        if those:
            lines.append(f"| {fault} | {' | '.join(each or '-' for each in cells)} |")
    return lines


def told(row: Row, name: str) -> str:
    """Return a pause of an SDK; emphasised where it had a connection to the leader."""
    found = row.sends[name]
    text = NONE if found is None else f"{found:.2f}"
    return f"*{text}*" if name in row.connected else text


def aims(rows: Sequence[Row]) -> list[str]:
    """Say which SDKs have missed the aims with ours."""
    said = []
    for fault, aim in AIMS_S.items():
        those = [row for row in rows if (row.fault, row.system) == (fault, "whimbrel")]
        missed = [
            f"{NAMES[name]} {sum(not within(row.sends[name], aim) for row in those)} of {len(those)}"
            for name in languages(those)
            if any(not within(row.sends[name], aim) for row in those)
        ]
        if those:
            said.append(
                f"- {fault}, {aim:g} s: {'missed by ' + ', '.join(missed) if missed else 'met by all'}."
            )
    return said


def within(found: float | None, aim: float) -> bool:
    """Return whether a time meets an aim."""
    return found is not None and found <= aim


def page(rows: Sequence[Row]) -> str:
    """Return the page as Markdown."""
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    seeds = "; ".join(
        f"{SYSTEMS[system]}: seed {', '.join(dict.fromkeys(str(row.seed) for row in those))}, commit"
        f" {', '.join(dict.fromkeys(row.commit for row in those))}"
        for system in SYSTEMS
        if (those := [row for row in rows if row.system == system])
    )

    def of(kind: str, name: str) -> Callable[[Sequence[Row]], str]:
        return lambda those: pair([getattr(row, kind)[name] for row in those if name in row.sends])

    def total(kind: str) -> Callable[[Sequence[Row]], str]:
        def told(those: Sequence[Row]) -> str:
            counted = [row for row in those if row.acknowledged]  # else it was ended before all was read
            return f"{sum(getattr(row, kind) for row in counted):,}" if counted else "not read"

        return told

    def cut(those: Sequence[Row]) -> str:
        known = [row.cut_bytes for row in those if row.cut_bytes is not None]
        return f"{sum(known):,}" if known else "not told"

    lines = [
        "# Failovers beside RocketMQ",
        "",
        "Generated by `make beside-failovers`, but for the last section; do not edit the others.",
        "",
        f"{seeds}.",
        f"{today}: {len(rows)} failovers in {sum(row.minutes for row in rows):.0f} minutes.",
        "",
        *ABOUT,
        "",
        "| Fault | What is done |",
        "|---|---|",
        *(f"| {fault} | {words} |" for fault, words in FAULT_WORDS.items()),
        "",
        "## Sends",
        "",
        *table(
            rows,
            [
                ("Rounds", lambda those: str(len(those))),
                ("Route", lambda those: pair([row.route for row in those])),
                ("New client", lambda those: pair([row.newcomer for row in those])),
                *((f"Next send, {NAMES[name]}", of("sends", name)) for name in languages(rows)),
            ],
        ),
        "",
        "The aims for sends of ours to go on, for each SDK in each round:",
        "",
        *aims(rows),
        "",
        "Ours again, round by round. In *italics* where the SDK had a connection to the leader when the",
        "fault began, and may not have used it: some keep connections to earlier addresses. One connected to",
        "another member is served by it, as it hands calls on.",
        "",
        *round_by_round(rows),
        "",
        "## Receives, and what became of messages",
        "",
        *table(rows, [(f"Next receive, {NAMES[name]}", of("receives", name)) for name in languages(rows)]),
        "",
        "*Given up* are sends that failed for the application, after the SDK's own tries. *Lost*:",
        "acknowledged, and in no queue at the end. *Twice*: at two places, since a try without an answer was",
        "stored, and sent again. *Cut*: bytes cut off the logs of former leaders, which no majority had;",
        "RocketMQ's brokers do not tell. *Back* is the time from the end of the fault until all members are",
        "in step, and all SDKs send and receive; *paused then* the longest time without a send of one of",
        "them meanwhile.",
        "",
        *table(
            rows,
            [
                ("Acknowledged", total("acknowledged")),
                ("Given up", total("given_up")),
                ("Lost", total("lost")),
                ("Twice", total("duplicates")),
                ("Cut", cut),
                ("Back", lambda those: pair([row.back for row in those])),
                ("Paused then", lambda those: pair([max(row.after.values()) for row in those])),
            ],
        ),
    ]
    return "\n".join(lines) + "\n"

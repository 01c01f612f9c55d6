"""`whimbrel store`: inspects store directories, ours and RocketMQ's own, at rest or while a broker runs.

`dump` and `verify` only read. `recover` does the recovery of a broker's start, or prints what that would do.
`repair` is for a store whose log a start refuses: it shows what is damaged, and does what its options say.
The work is done in `whimbrel.store`; this module has the command lines, and prints results. File sizes are
known from the files; only an index file's number of slots may have to be given. `export` needs to read what a
broker knows of its groups, so it runs as a process of the broker's side.

A dump is one JSON object a line, with the fields of RocketMQ's own dumps (`tests/golden/README.md`), so line
tools can cut and search it while it is written; `-o table` is for people.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.asking import YesOption, ask, counted
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, time_text
from whimbrel.errors import StoreError
from whimbrel.escapes import printable_json
from whimbrel.model.properties import KEYS, TAGS

if TYPE_CHECKING:
    from whimbrel.store.repair import Findings

__all__ = ["dump", "export", "moved", "recover", "reinit", "repair", "store", "verify"]

store = group("Dump, verify, recover, repair and export store directories, also RocketMQ's.")

Row = dict[str, Any]

PIECE_S_MAX = 600.0  # for one range of another broker's log

NO_STORE = 2  # exit code of `verify`, whose 1 means damage

COLUMNS = {
    "record": (
        "phyOffset",
        "size",
        "topic",
        "queueId",
        "queueOffset",
        "storeTimestamp",
        "tags",
        "keys",
        "uniqKey",
    ),
    "queue": ("topic", "queueId", "min", "max", "maxPhysicOffset"),
    "query": ("topic", "key", "phyOffsets"),
    "config": ("file", "content"),
}

PathArgument = Annotated[Path, typer.Argument(help="Store directory: the one with commitlog/ in it.")]
SlotsOption = Annotated[
    int,
    typer.Option(
        "--index-slots",
        min=0,
        help="Slots of an index file, where they are not a quarter of its entries.",
        show_default=False,
    ),
]


@store.command(
    epilog=examples(
        "whimbrel store dump ./store | head -1",
        "whimbrel store dump ./store --queues -o table",
        "whimbrel store dump ./store --index 4711",
        "whimbrel store dump ./store --config",
    )
)
def dump(
    path: PathArgument,
    queues: Annotated[bool, typer.Option("--queues", help="The consume queues and their entries.")] = False,
    index: Annotated[
        str | None,
        typer.Option("--index", metavar="KEY", help="What the index has for a key, in each topic."),
    ] = None,
    config: Annotated[bool, typer.Option("--config", help="The files below config/.")] = False,
    blanks: Annotated[
        bool, typer.Option("--blanks", help="With the records, the blanks that end the files.")
    ] = False,
    index_slots: SlotsOption = 0,
    output: OutputOption = Format.JSON,
) -> None:
    """Print what a store holds: every record of its commitlog, or its queues, index or config."""
    from whimbrel.store import inspect

    if sum((queues, index is not None, config)) > 1:
        raise typer.BadParameter("choose one of --queues, --index and --config")
    if queues:
        show(inspect.dump_queues(path), "queue", output)
    elif index is not None:
        show(query_rows(path, index, index_slots), "query", output)
    elif config:
        broken: list[str] = []
        show(config_rows(path, broken), "config", output)
        if broken:
            note(f"whimbrel: neither these files nor their .bak can be read: {', '.join(broken)}")
            raise typer.Exit(1)
    else:
        damages: list[Row] = []
        show(record_rows(path, damages, blanks=blanks), "record", output)
        if damages:
            note(f"whimbrel: {path} is damaged at {len(damages)} places, and what stood there is left out")
            raise typer.Exit(1)


def record_rows(path: Path, damages: list[Row], *, blanks: bool) -> Iterator[Row]:
    """Yield the records; damage is reported on standard error, and added to `damages`."""
    from whimbrel.store import inspect

    for row in inspect.dump_records(path):
        if row["type"] == "record":
            yield {name: value for name, value in row.items() if value is not None}
        elif row["type"] == "damage":
            damages.append(row)
            note(f"byte {row['phyOffset']}: {row['what']}")
        elif blanks:
            yield row


def query_rows(path: Path, key: str, index_slots: int) -> Iterator[Row]:
    """Yield a row for each topic under which the index has the key."""
    from whimbrel.store import inspect

    found = False
    for topic in topics(path):
        offsets = inspect.query_index(path, topic, key, index_slots=index_slots)
        if offsets:
            found = True
            yield {"type": "query", "topic": topic, "key": key, "phyOffsets": offsets}
    if not found:
        note(f"the index has no {key!r}")


def topics(path: Path) -> list[str]:
    """Return the topics that have a queue or a configuration."""
    from whimbrel.store import jsonconfig

    names = {folder.name for folder in path.glob("consumequeue/*") if folder.is_dir()}
    table = jsonconfig.load(path / "config" / "topics.json")
    if isinstance(table, dict):
        names.update(table.get("topicConfigTable") or {})
    return sorted(names)


def config_rows(path: Path, broken: list[str]) -> Iterator[Row]:
    """Yield a row for each config file that is there; those that can't be read are added to `broken`."""
    from whimbrel.store import jsonconfig

    files = (file.name.removesuffix(".bak") for file in (path / "config").glob("*.json*"))
    for name in sorted({name for name in files if name.endswith(".json")}):
        content = jsonconfig.load(path / "config" / name)
        if content is None:
            broken.append(name)
        else:
            yield {"type": "config", "file": name, "content": content}


def show(rows: Iterable[Row], kind: str, output: Format) -> None:
    """Print rows as lines of JSON as they come, or as a table of some columns."""
    if output is Format.JSON:
        for row in rows:
            print(printable_json(json.dumps(row, ensure_ascii=False, separators=(",", ":"))))
        return
    columns = COLUMNS[kind]
    emit(None, output, columns=columns, rows=[[cell(row, column) for column in columns] for row in rows])


def cell(row: Row, column: str) -> object:
    """Return a cell of the table."""
    properties: dict[str, str] = row.get("properties", {})
    if column == "tags":
        return properties.get(TAGS)
    if column == "keys":
        return properties.get(KEYS)
    value = row.get(column)
    if column == "storeTimestamp" and value is not None:
        return time_text(value / 1000)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


@store.command(epilog=examples("whimbrel store verify ./store", "whimbrel store verify ./store -o json"))
def verify(path: PathArgument, index_slots: SlotsOption = 0, output: OutputOption = Format.TABLE) -> None:
    """Check log, queues and index for damage; exit code 1 when there is any, with what and where.

    What is no store has exit code 2.
    """
    from whimbrel.store.verify import verify as find_damage

    try:
        damages = find_damage(path, index_slots=index_slots)
    except StoreError as error:
        note(f"whimbrel: {error}")
        raise typer.Exit(NO_STORE) from error
    found = {
        "ok": not damages,
        "damages": [
            {"path": str(damage.path), "offset": damage.offset, "what": damage.what} for damage in damages
        ],
    }
    if damages or output is Format.JSON:
        rows = [(str(damage.path), damage.offset, damage.what) for damage in damages]
        emit(found, output, columns=("path", "offset", "what"), rows=rows)
    else:
        print(f"{path}: no damage")
    if damages:
        raise typer.Exit(1)


@store.command(epilog=examples("whimbrel store recover ./store --dry-run", "whimbrel store recover ./store"))
def recover(
    path: PathArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing, only tell what would come out.")
    ] = False,
    index_slots: SlotsOption = 0,
    output: OutputOption = Format.JSON,
) -> None:
    """Do to a store what a broker's start would: print where log and queues then begin and end."""
    from whimbrel.store import offline_recovery as plan
    from whimbrel.store.modes import same_modes

    with same_modes(path):
        found = plan.recover(path, dry_run=dry_run, index_slots=index_slots)
    if output is Format.JSON:
        print(printable_json(json.dumps({"type": "loaded", **found}, ensure_ascii=False)))
        return
    rows = [("commitlog", found["minPhyOffset"], found["maxPhyOffset"])]
    rows += [(name, low, high) for name, (low, high) in found["queues"].items()]
    emit(found, output, columns=("what", "begin", "end"), rows=rows)


@store.command(
    epilog=examples("whimbrel store export ./store", "whimbrel store export ./member-1 --to ./exported")
)
def export(
    path: PathArgument,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Export to this directory, which is empty or not there; the store is only read.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Make a store at rest ready for RocketMQ: what groups hold goes into their retry topics.

    RocketMQ knows one offset for a group and a queue. Without this it delivers again what was acknowledged
    behind a message that is still held. A store of a group that elects its leader is exported with --to, as
    far as it is known to be committed.
    """
    command = [sys.executable, "-P", "-m", "whimbrel.starting", "whimbrel.broker.export", str(path)]
    command += [] if to is None else ["--to", str(to)]
    done = subprocess.run([*command, "--json"] if output is Format.JSON else command, check=False)
    raise typer.Exit(done.returncode)


@store.command(
    epilog=examples(
        "whimbrel store repair ./store",
        "whimbrel store repair ./store --from 10.0.0.2:8091",
        "whimbrel store repair ./store --set-aside --yes",
    )
)
def repair(
    path: PathArgument,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside", help="End the log below the damage; keep what is behind in whimbrel/cut/."
        ),
    ] = False,
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="HOST:PORT",
            help="Fetch what is damaged from this broker of the same group, a slave or the master.",
            show_default=False,
        ),
    ] = "",
    file_size: Annotated[
        int,
        typer.Option(
            "--commitlog-file-size",
            min=0,
            help="Of the log's files, where they do not tell it any more.",
            show_default=False,
        ),
    ] = 0,
    yes: YesOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Show where a log at rest is damaged, and repair it in the way that an option chooses.

    Without --set-aside and --from nothing is changed.
    """
    from whimbrel.store import repair as work
    from whimbrel.store.locking import is_locked

    if set_aside and source:
        raise typer.BadParameter("choose one of --set-aside and --from")
    if is_locked(path):
        raise StoreError(f"{path} is in use: stop its broker, and on a slave its replicator")
    findings = work.examine(path, file_size=file_size)
    show_findings(path, findings, output, choices=not set_aside and not source)
    if not findings.hurt and findings.regular and not findings.state.lost:
        return
    if source:
        count = work.fetch(path, findings, BrokerLog(source))
        note(f"{count} bytes were fetched from {source}; {path} can be started")
    elif set_aside:
        ask(
            f"end the log of {path} at byte {findings.state.end}, and set"
            f" {counted(findings.records_behind, 'whole record')} behind that aside",
            yes=yes,
        )
        end = work.set_aside(path, findings)
        note(f"the log ends at {end} now; what was behind is in {path / 'whimbrel' / 'cut'}")


@store.command(epilog=examples("whimbrel store reinit /var/lib/whimbrel/broker-a --yes"))
def reinit(
    path: PathArgument,
    yes: YesOption = False,
) -> None:
    """Empty the store of a member at rest, so that it follows anew when it is started.

    For a member of a group that elects its leader whose processes do not start, with a damaged log for
    instance; else `whimbrel replication reinit`, which also sees whether enough others hold the log. The
    member keeps its id and what it has promised, and votes again once it has all that is committed.
    """
    from whimbrel.store.emptying import reinit_offline

    ask(f"remove log, queues and index of {path}", yes=yes)
    seat = reinit_offline(path)
    note(f"{path} is empty: start broker and replicator of member {seat.member}, which follow anew")


@store.command(
    epilog=examples(
        "whimbrel store moved /data/new/broker-a --endpoint 10.0.0.1:8081",
        "whimbrel store moved /data/new/broker-a --yes",
    )
)
def moved(
    path: PathArgument,
    yes: YesOption = False,
    endpoint: Annotated[
        str,
        typer.Option(
            "--endpoint",
            metavar="HOST:PORT",
            help="Nameserver of the group: refuse if it knows that this store is an older copy.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Say that the store of a member at rest was moved to another disk, and not copied: it keeps its vote.

    For a group that elects its leader, before the first start in the new place. A copy of a store that has
    run on since must not be taken for it: what was acknowledged since would be forgotten. For backups there
    is `whimbrel restore`.
    """
    from whimbrel.store.offline_vote import moved_seat, take_moved

    seat = moved_seat(path)
    if seat is None:
        note(f"{path} is where its member ran last, or was started here already: there is nothing to do")
        return
    led, held = newest_known(endpoint, seat.group, seat.member) if endpoint else (0, 0)
    ask(
        f"take {path} for the only copy of member {seat.member}'s store, which has run nowhere since it was"
        " moved: if it is a copy of a store that ran on, messages that were acknowledged may be lost",
        yes=yes,
    )
    take_moved(path, led=led, held=held)
    note(f"{path} is the store of member {seat.member}, as it was: start broker and replicator")


def newest_known(endpoint: str, group: str, member: int) -> tuple[int, int]:
    """Return the newest epoch that a member has led, and how far it held the log of who leads, as far as its
    group's members know; 0: not known."""
    from whimbrel.client import sync

    with sync.Admin(endpoint) as admin:
        views = admin.replication(admin.cluster().brokers)
    known = [
        (view.election.record, view.known_ends)
        for view in views
        if not isinstance(view, tuple) and view.election is not None and view.election.record is not None
    ]
    ours = [(record, ends) for record, ends in known if record.group == group]
    led = (turn.epoch for record, _ in ours for turn in record.history if turn.leader == member)
    return max(led, default=0), max((ends.get(member, 0) for _, ends in ours), default=0)


def show_findings(path: Path, findings: "Findings", output: Format, *, choices: bool) -> None:
    """Print what was found; `choices` adds what can be done."""
    state = findings.state
    found = {
        "begin": state.begin,
        "end": state.end,
        "synced": state.synced,
        "startRefused": state.lost or not findings.regular,
        "recordsBehind": findings.records_behind,
        "missingFiles": list(findings.missing),
        "shortFiles": list(findings.short),
        "damaged": [{"begin": hurt.begin, "end": hurt.end, "what": hurt.what} for hurt in findings.hurt],
    }
    rows = [(hurt.begin, hurt.end, hurt.end - hurt.begin, hurt.what) for hurt in findings.hurt]
    if rows or output is Format.JSON:
        emit(found, output, columns=("begin", "end", "bytes", "what"), rows=rows)
    else:
        print(f"{path}: no damage in the log")
    if not choices or not (rows or found["startRefused"]):
        return
    note(
        f"--from HOST:PORT fetches these ranges from another broker of the group.\n"
        f"--set-aside ends the log at {state.end}: whole records behind that are given up"
        f" ({findings.records_behind}), and kept in whimbrel/cut/."
    )


class BrokerLog:
    """The log of a broker that runs, as another copy of this one (`repair.LogCopy`)."""

    def __init__(self, address: str) -> None:
        self.address = address

    def read(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of a range."""
        from whimbrel.rpc.api.bulk_calls import log_bytes, open_bulk_channel, stream_blocking

        with open_bulk_channel(self.address) as channel:
            yield from stream_blocking(channel, log_bytes(begin, end), timeout_s=PIECE_S_MAX)

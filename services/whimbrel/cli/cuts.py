"""`whimbrel replication cut`: what was cut off the logs of members, and how it comes back.

A cut is named by its directory in `STORE/whimbrel/cut/`: EPOCH-FROM-TO. Live members are asked over gRPC;
with `--store PATH` the store is read here, and only `replay` talks to the group. How far a cut was replayed
is written down beside it, after each page is safe: a replay that was interrupted goes on there.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.asking import YesOption, ask, counted
from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, size_text, time_text
from whimbrel.errors import BadRequest, WhimbrelError
from whimbrel.model.cuts import (
    CUT_PAGE_BYTES_MAX,
    CUT_PAGE_RECORDS_MAX,
    CutMark,
    CutOutcome,
    CutPage,
    CutResult,
    CutStatus,
)
from whimbrel.model.health import missing_brokers

if TYPE_CHECKING:
    from whimbrel.client import BrokerStatus, sync
    from whimbrel.store.codec import StoredMessage

__all__ = ["app"]

app = group("List what was cut off the logs of members, look into it, and put it back.")

WHYS_MAX = 5  # reasons of refusals that are printed; -o json has all
OUTCOMES_MAX = 10_000  # of a replay that -o json prints

BrokerOption = Annotated[
    str, typer.Option("--broker", metavar="NAME", help="Only this broker group.", show_default=False)
]
MemberOption = Annotated[
    int | None, typer.Option("--member", min=0, help="Only this member, by its id.", show_default=False)
]
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="PATH", help="Read this store directory, of a member at rest.", show_default=False
    ),
]
CutArgument = Annotated[str, typer.Argument(metavar="CUT", help="Its name, as `cut list` shows it.")]


@dataclass(frozen=True, slots=True)
class Place:
    """Where cuts are kept: a live member, or a store directory.

    Attributes:
        broker, member: the broker group and the member's id; "" and 0 of a store directory.
    """

    broker: str
    member: int
    list: Callable[[], Sequence[CutStatus]]
    read: Callable[[str, int, int], CutPage]
    mark: Callable[[str, CutMark], None]


@app.command(
    "list",
    epilog=examples(
        "whimbrel replication cut list",
        "whimbrel replication cut list --broker broker-a --member 2 -o json",
        "whimbrel replication cut list --store /var/lib/whimbrel/broker-a",
    ),
)
def list_cuts(
    broker: BrokerOption = "",
    member: MemberOption = None,
    store: StoreOption = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List what was cut off logs and is kept: records of former leaders that were never committed.

    Exit code 1 when a member could not be asked, or is not there.
    """
    rows, objects = [], []
    with places(broker, member, store, endpoint) as (found, missing):
        for place in found:
            try:
                cuts = place.list()
            except WhimbrelError as error:
                missing.append(f"{place.broker} member {place.member} could not be asked: {error}")
                continue
            objects += [as_object(place, cut) for cut in cuts]
            rows += [row_of(place, cut) for cut in cuts]
    columns = ("broker", "member", "cut", "bytes", "records", "cut at (UTC)", "replayed", "why")
    if rows or output is not Format.TABLE:
        emit(objects, output, columns=columns, rows=rows, optional=("why", "broker"))
    elif not missing:
        note("nothing was cut")
    for sentence in missing:
        note(sentence)
    if missing:
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "whimbrel replication cut show 3-00000000000000001200-00000000000000004800",
        "whimbrel replication cut show 3-00000000000000001200-00000000000000004800 --from 3600 -o json",
    )
)
def show(
    name: CutArgument,
    start: Annotated[
        int, typer.Option("--from", min=0, metavar="OFFSET", help="Begin at this offset of the log.")
    ] = 0,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="So many records at the most.")] = 20,
    broker: BrokerOption = "",
    member: MemberOption = None,
    store: StoreOption = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show the records in a cut, without their bodies; -o json has what is kept of each, and the offset to
    go on from.
    """
    from whimbrel.store.codec import decode_record

    messages: list[StoredMessage] = []
    with places(broker, member, store, endpoint) as (found, missing):
        place = place_of(name, found, missing)
        position = start
        while position >= 0 and len(messages) < count:
            page = place.read(name, position, min(count - len(messages), CUT_PAGE_RECORDS_MAX))
            messages += [decode_record(record) for _, record in page.records]
            position = page.next
    objects = {"records": [record_object(message) for message in messages], "next": position}
    columns = (
        "offset",
        "topic",
        "queue",
        "queue offset",
        "message id",
        "tag",
        "keys",
        "bytes",
        "stored (UTC)",
    )
    rows = [
        (
            message.physical_offset,
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.properties.get("UNIQ_KEY", message.offset_message_id),
            message.properties.get("TAGS", ""),
            message.properties.get("KEYS", ""),
            message.size,
            time_text(message.store_timestamp / 1000),
        )
        for message in messages
    ]
    emit(objects, output, columns=columns, rows=rows, optional=("queue offset", "tag", "keys", "bytes"))
    if position >= 0:
        note(f"there is more: go on with --from {position}")


@app.command(
    epilog=examples(
        "whimbrel replication cut replay 3-00000000000000001200-00000000000000004800 --dry-run",
        "whimbrel replication cut replay 3-00000000000000001200-00000000000000004800 --yes",
        "whimbrel replication cut replay 3-00000000000000001200-00000000000000004800 --topic orders",
        "whimbrel replication cut replay 3-... --store /mnt/old/broker-a --broker broker-a",
    )
)
def replay(
    name: CutArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only of this topic; may be repeated."),
    ] = None,
    message_id: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Only of this message id; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Store nothing, only tell what would become of each.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Go through it from its begin, though that was done.")
    ] = False,
    yes: YesOption = False,
    broker: BrokerOption = "",
    member: MemberOption = None,
    store: StoreOption = None,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Put the records of a cut back into their topics, each once, under their ids.

    A message whose id its topic has already is not stored again: its sender may have sent it once more. What
    the broker had made by itself (halves and decisions of transactions, redeliveries, dead letters,
    deliveries of delayed messages) is refused, with the reason. How far it came is written down beside the
    cut, after that is safe; so a replay that is interrupted goes on where it was, and one that is done says
    so. With --topic or --id all of the cut is gone through, and nothing is written down.

    Exit code 1 when a record was refused.
    """
    chosen = bool(topic or message_id)
    counts: Counter[CutResult] = Counter()
    outcomes: list[CutOutcome] = []
    whys: Counter[str] = Counter()
    target = resolve_endpoint(endpoint)
    from whimbrel.client import sync

    with places(broker, member, store, endpoint) as (found, missing), sync.Admin(target) as admin:
        place = place_of(name, found, missing)
        group_name = place.broker or broker or only_group(admin)
        cut = next(each for each in place.list() if each.name == name)
        mark = None if again else cut.mark
        if mark is not None and mark.done and not chosen and not dry_run:
            note(
                f"{name} was replayed at {time_text(mark.time_ms / 1000)} UTC: {told(mark)}; --again goes"
                " through it once more"
            )
            if output is not Format.TABLE:
                emit(
                    summary(name, Counter(), [], dry_run=False, done_before=True), output, columns=(), rows=()
                )
            return
        start = mark if mark is not None and not mark.done and not chosen else CutMark()
        much = "its records" if cut.records is None else counted(cut.records, "record")
        some = "those that are chosen of " if chosen else ""
        ask(
            f"put {some}{much} of {name} back into their topics, but for those that are there; --dry-run"
            " tells what would become of each",
            yes=yes or dry_run,
        )
        position = start.position
        while position >= 0:
            page = None if store is None else place.read(name, position, CUT_PAGE_RECORDS_MAX)
            if page is not None and not page.records:  # nothing was found in what was looked at
                following = page.next
            else:
                replayed = admin.replay_cut(
                    group_name,
                    place.member,
                    name,
                    position,
                    topics=topic or (),
                    message_ids=message_id or (),
                    dry_run=dry_run,
                    page=page,
                )
                counts.update(outcome.result for outcome in replayed.outcomes)
                whys.update(outcome.why for outcome in replayed.outcomes if outcome.why)
                outcomes += replayed.outcomes[: OUTCOMES_MAX - len(outcomes)]
                following = replayed.next if page is None else page.next
            if not dry_run and not chosen:
                place.mark(name, marked(start, counts, following, cut.end))
            position = following
    if output is Format.TABLE:
        would = "would be " if dry_run else ""
        note(
            f"{name}: {counts[CutResult.STORED]} {would}put back, {counts[CutResult.PRESENT]} are in their"
            f" topics already, {counts[CutResult.REFUSED]} {would}refused"
        )
        for why, times in whys.most_common(WHYS_MAX):
            note(f"refused, {times} times: {why}")
        if len(whys) > WHYS_MAX:
            note(f"and {len(whys) - WHYS_MAX} other reasons: -o json has them")
    else:
        emit(summary(name, counts, outcomes, dry_run=dry_run, done_before=False), output, columns=(), rows=())
    if counts[CutResult.REFUSED]:
        raise typer.Exit(1)


def marked(start: CutMark, counts: Counter[CutResult], following: int, end: int) -> CutMark:
    """Return what is written down after a page: the counts of this replay besides those before it."""
    return CutMark(
        position=end if following < 0 else following,
        done=following < 0,
        stored=start.stored + counts[CutResult.STORED],
        present=start.present + counts[CutResult.PRESENT],
        refused=start.refused + counts[CutResult.REFUSED],
    )


def told(mark: CutMark) -> str:
    """Return a mark's counts for people."""
    return f"{mark.stored} put back, {mark.present} were there, {mark.refused} refused"


def summary(
    name: str,
    counts: Counter[CutResult],
    outcomes: Sequence[CutOutcome],
    *,
    dry_run: bool,
    done_before: bool,
) -> dict[str, Any]:
    """Return what a replay came to, for JSON."""
    return {
        "cut": name,
        "dry_run": dry_run,
        "done_before": done_before,
        **{result.value: counts[result] for result in CutResult},
        "outcomes": [
            {
                "offset": outcome.offset,
                "topic": outcome.topic,
                "message_id": outcome.message_id,
                "result": outcome.result.value,
                "why": outcome.why,
            }
            for outcome in outcomes
        ],
    }


# Places


@contextlib.contextmanager
def places(
    broker: str, member: int | None, store: Path | None, endpoint: str
) -> Iterator[tuple[list[Place], list[str]]]:
    """Yield where to look, and a sentence for each member that is not there.

    Raises:
        BadRequest: no such broker group, or no such member of it.
    """
    if store is not None:
        if member is not None:
            raise typer.BadParameter("choose one of --member and --store")
        if not (store / "commitlog").is_dir() and not (store / "whimbrel").is_dir():
            raise BadRequest(f"{store} is no store directory: name the one with commitlog/ in it")
        yield [of_store(store)], []
        return
    from whimbrel.client import sync

    with sync.Admin(resolve_endpoint(endpoint)) as admin:
        brokers = admin.members(broker)
        wanted = [each for each in brokers if member in (None, id_of(each))]
        if not wanted:
            known = ", ".join(f"{each.broker_name} {id_of(each)}" for each in brokers)
            raise BadRequest(f"there is no member {member} now; there are {known}")
        views = admin.replication(brokers)
        lost = missing_brokers(brokers, views, admin.cluster().absent)
        missing = [
            f"{one.broker_name} {one.who} could not be asked: {one.advice}"
            for one in lost
            if broker in ("", one.broker_name) and member in (None, one.broker_id)
        ]
        yield [of_member(admin, each) for each in wanted], missing


def id_of(broker: "BrokerStatus") -> int:
    """Return a broker's id in its group, whatever its role."""
    return broker.member_id or broker.broker_id


def of_member(admin: "sync.Admin", broker: "BrokerStatus") -> Place:
    """Return the place of a live member."""
    return Place(
        broker.broker_name,
        id_of(broker),
        lambda: admin.cuts(broker),
        lambda name, position, count: admin.read_cut(broker, name, position, count),
        lambda name, mark: admin.mark_cut(broker, name, mark),
    )


def of_store(root: Path) -> Place:
    """Return the place of a store directory."""
    from whimbrel.machine import Machine
    from whimbrel.store import cut_reader

    def read(name: str, position: int, count: int) -> CutPage:
        return cut_reader.read_cut(root, name, position, count=count, bytes_max=CUT_PAGE_BYTES_MAX)

    def write(name: str, mark: CutMark) -> None:
        cut_reader.write_mark(root, name, mark, Machine())

    return Place("", 0, lambda: cut_reader.cut_statuses(root), read, write)


def place_of(name: str, found: Sequence[Place], missing: Sequence[str]) -> Place:
    """Return the place that has a cut; `missing` has a sentence for each that is not there.

    Raises:
        BadRequest: none has, or several have.
        WhimbrelError: a member could not be asked.
    """
    having = [place for place in found if any(cut.name == name for cut in place.list())]
    if not having:
        raise BadRequest(
            "; ".join(
                [
                    f"nobody who was asked has a cut {name}: `whimbrel replication cut list` shows them",
                    *missing,
                ]
            )
        )
    if len(having) > 1:
        which = ", ".join(f"{place.broker} member {place.member}" for place in having)
        raise BadRequest(f"several have a cut {name}: {which}; say which by --broker and --member")
    return having[0]


def only_group(admin: "sync.Admin") -> str:
    """Return the name of the only broker group.

    Raises:
        BadRequest: there are several.
    """
    names = sorted({broker.broker_name for broker in admin.members()})
    if len(names) > 1:
        raise BadRequest(f"which group are the records of? Name it by --broker: {', '.join(names)}")
    return names[0]


# Output


def row_of(place: Place, cut: CutStatus) -> tuple[Any, ...]:
    """Return a cut as a row."""
    return (
        place.broker or "-",
        place.member or "-",
        cut.name,
        size_text(cut.end - cut.begin),
        "?" if cut.records is None else cut.records,
        time_text(cut.time_ms / 1000),
        state_of(cut.mark),
        cut.why,
    )


def state_of(mark: CutMark | None) -> str:
    """Return how far a cut was replayed."""
    if mark is None:
        return "no"
    if not mark.done:
        return "in part"
    return f"yes, {mark.refused} refused" if mark.refused else "yes"


def as_object(place: Place, cut: CutStatus) -> dict[str, Any]:
    """Return a cut for JSON."""
    return {
        "broker_name": place.broker,
        "member": place.member,
        "cut": cut.name,
        "epoch": cut.epoch,
        "from": cut.begin,
        "to": cut.end,
        "bytes": cut.end - cut.begin,
        "kept_bytes": cut.size,
        "records": cut.records,
        "time_ms": cut.time_ms,
        "why": cut.why,
        "replayed": state_of(cut.mark),
        "mark": cut.mark,
    }


def record_object(message: "StoredMessage") -> dict[str, Any]:
    """Return a record for JSON, without its body."""
    return {
        "offset": message.physical_offset,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.properties.get("UNIQ_KEY", message.offset_message_id),
        "keys": message.properties.get("KEYS", "").split(),
        "tag": message.properties.get("TAGS", ""),
        "size": message.size,
        "body_bytes": len(message.body),
        "store_time_ms": message.store_timestamp,
        "born_time_ms": message.born_timestamp,
        "properties": dict(message.properties),
    }

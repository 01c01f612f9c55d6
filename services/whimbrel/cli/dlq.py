"""`whimbrel dlq`: list, show, replay and drop the dead letters of a consumer group."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whimbrel.cli.asking import YesOption, ask, counted
from whimbrel.cli.endpoint import EndpointOption, resolve_endpoint
from whimbrel.cli.lazy import examples, group
from whimbrel.cli.output import Format, OutputOption, emit, note, time_text
from whimbrel.cli.shown_messages import as_object, shown_body
from whimbrel.cli.spark.dlq import since_of
from whimbrel.cli.unasked import saying_what_lacks

if TYPE_CHECKING:
    from whimbrel.client import DeadLetter, DeadLetterOutcome, sync

__all__ = ["Chosen", "app"]

app = group("List dead letters of a group; put them back into their topics, or drop them.")

RATE = 100.0  # as of the client library, which this module does not import for a help page
AT_ONCE = 256  # dead letters that are in memory

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group that gave them up.")]
IdOption = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="Of this message id; may be repeated.", show_default=False),
]
KeyOption = Annotated[str, typer.Option(metavar="KEY", help="With this message key.", show_default=False)]
TopicOption = Annotated[
    str, typer.Option(metavar="TOPIC", help="Sent to this topic originally.", show_default=False)
]
SinceOption = Annotated[
    str,
    typer.Option(metavar="TIME", help="Dead since: 30m, 2h, 7d, or a time (UTC).", show_default=False),
]
UntilOption = Annotated[
    str,
    typer.Option(metavar="TIME", help="Dead before: 30m, 2h, 7d ago, or a time (UTC).", show_default=False),
]
AllOption = Annotated[bool, typer.Option("--all", help="All of them.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")]

COLUMNS = ("message id", "from topic", "tag", "keys", "attempts", "dead since (UTC)", "broker", "offset")
PARTS = ("result", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which dead letters are meant; what is empty is not asked for.

    Attributes:
        since, until: epoch seconds between which they were stored, the end left out.
    """

    ids: frozenset[str] = frozenset()
    key: str = ""
    topic: str = ""
    since: float | None = None
    until: float | None = None

    def has(self, letter: "DeadLetter") -> bool:
        """Return whether a letter is meant."""
        message = letter.message
        stored = message.stored_at or 0.0
        return (
            (not self.ids or message.message_id in self.ids)
            and (not self.key or self.key in message.keys)
            and (not self.topic or self.topic == letter.origin_topic)
            and (self.since is None or stored >= self.since)
            and (self.until is None or stored < self.until)
        )


def chosen_by(
    message_id: IdOption = None,
    key: KeyOption = "",
    topic: TopicOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
) -> Chosen:
    """Return what the options choose.

    Raises:
        typer.BadParameter: a time is none.
    """
    now = datetime.now(UTC)
    begin, end = since_of(since, now), since_of(until, now, "--until")
    return Chosen(
        ids=frozenset(message_id or ()),
        key=key,
        topic=topic,
        since=None if begin is None else begin.timestamp(),
        until=None if end is None else end.timestamp(),
    )


def chosen_or_all(chosen: Chosen, everything: bool) -> Chosen:
    """Return the choice.

    Raises:
        typer.BadParameter: nothing is chosen, or all and some.
    """
    if (chosen == Chosen()) is not everything:
        raise typer.BadParameter("choose by --id, --key, --topic, --since or --until; or take --all")
    return chosen


def choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `chosen_by` in place of its parameter `chosen`."""
    options, own = inspect.signature(chosen_by).parameters, inspect.signature(command).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        command(chosen=chosen_by(**{name: given.pop(name) for name in options}), **given)

    shown = [one for name, its in own.items() for one in (options.values() if name == "chosen" else (its,))]
    vars(run)["__signature__"] = inspect.Signature(shown)  # typer reads the options from it
    return run


@app.command(
    "list",
    epilog=examples(
        "whimbrel dlq list billing",
        "whimbrel dlq list billing --topic orders --since 2h",
        "whimbrel dlq list billing -n 0 -o jsonl > dead.jsonl",
    ),
)
@choosing
def list_letters(
    name: GroupArgument,
    chosen: Chosen,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="So many at the most; 0: all.")] = 100,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """List what is left of a group's dead letters: neither put back nor dropped."""
    from whimbrel.client import sync

    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        found: list[DeadLetter] = []
        more = False
        letters = admin.dead_letters(name, with_bodies=output is not Format.TABLE, unasked=unasked)
        for letter in filter(chosen.has, letters):
            if count and len(found) == count:
                more = True
                break
            found.append(letter)
        show_letters(name, chosen, found, output, more=count if more else 0, whole=not unasked)


def show_letters(
    name: str, chosen: Chosen, found: "Sequence[DeadLetter]", output: Format, *, more: int, whole: bool
) -> None:
    """Print what is left of a group's dead letters.

    Args:
        name: the group's.
        chosen: which of them were asked for.
        found: they are.
        output: the format.
        more: there are more than so many; 0: there are not.
        whole: all brokers were asked.
    """
    emit([letter_object(one) for one in found], output, columns=COLUMNS, rows=[row(one) for one in found])
    if more:
        note(f"there are more than these {more}: -n 0 lists all")
    elif not found and whole and output is Format.TABLE:
        note(f"group {name} has no such dead letters" if chosen != Chosen() else f"group {name} has none")


@app.command(
    epilog=examples(
        "whimbrel dlq show billing --id 01A2B3C4D5E6F7", "whimbrel dlq show billing --key 4711 -o json"
    )
)
@choosing
def show(
    name: GroupArgument,
    chosen: Chosen,
    one: Annotated[str, typer.Argument(metavar="", hidden=True)] = "",  # the id, as it was named before
    everything: AllOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show dead letters with their properties and their bodies."""
    from whimbrel.client import sync

    if one:
        chosen = replace(chosen, ids=chosen.ids | {one})
    chosen = chosen_or_all(chosen, everything)
    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        letters = admin.dead_letters(name, unasked=unasked)
        found = [letter for letter in letters if chosen.has(letter)]
        if not found:
            asked = " at the brokers that could be asked" if unasked else ""
            which = f"dead letter {' or '.join(sorted(chosen.ids))}" if chosen.ids else "such dead letter"
            note(
                f"whimbrel: group {name} has no {which} left{asked};"
                f" `whimbrel dlq list {name}` shows which it has"
            )
            raise typer.Exit(1)
        rows = [part for letter in found for part in details(letter)]
        emit([letter_object(one) for one in found], output, columns=("what", "value"), rows=rows)


@app.command(
    epilog=examples(
        "whimbrel dlq replay billing --id 01A2B3C4D5E6F7",
        "whimbrel dlq replay billing --topic orders --since 2h --dry-run",
        "whimbrel dlq replay billing --all --rate 20 --yes",
    )
)
@choosing
def replay(
    name: GroupArgument,
    chosen: Chosen,
    everything: AllOption = False,
    rate: Annotated[float, typer.Option(metavar="N", min=0, help="Messages a second; 0: no bound.")] = RATE,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Put dead letters back into the topics that they were sent to, under their ids, each once."""
    from whimbrel.client import sync

    chosen = chosen_or_all(chosen, everything)
    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        deed = f"put {{}} of group {name} back into the topics that they were sent to"
        ask(lambda: about(admin, name, chosen, deed), yes=yes or dry_run)
        letters = admin.dead_letters(name, with_bodies=False, unasked=unasked)
        settle(
            filter(chosen.has, letters),
            None if dry_run else lambda some: admin.replay_dead_letters(some, rate=rate),
            "put back",
            output,
        )


@app.command(
    epilog=examples(
        "whimbrel dlq drop billing --id 01A2B3C4D5E6F7 --yes",
        "whimbrel dlq drop billing --until 7d --dry-run",
    )
)
@choosing
def drop(
    name: GroupArgument,
    chosen: Chosen,
    everything: AllOption = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    endpoint: EndpointOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Have dead letters no longer listed; they stay in their topic until retention removes them."""
    from whimbrel.client import sync

    chosen = chosen_or_all(chosen, everything)
    with saying_what_lacks() as unasked, sync.Admin(resolve_endpoint(endpoint)) as admin:
        deed = "drop {} of group " + name
        ask(lambda: about(admin, name, chosen, deed), yes=yes or dry_run)
        letters = admin.dead_letters(name, with_bodies=False, unasked=unasked)
        settle(filter(chosen.has, letters), None if dry_run else admin.drop_dead_letters, "dropped", output)


def about(admin: "sync.Admin", name: str, chosen: Chosen, deed: str) -> str:
    """Return what would be done with the chosen letters, for the question: `deed` with their number."""
    letters = admin.dead_letters(name, with_bodies=False, unasked=[])
    count = sum(map(chosen.has, letters))
    return deed.format(counted(count, "dead letter")) if count else ""


def settle(
    letters: "Iterator[DeadLetter]",
    work: "Callable[[Sequence[DeadLetter]], Sequence[DeadLetterOutcome]] | None",
    done: str,
    output: Format,
) -> None:
    """Do what is to be done with letters, part by part, and tell the result; None only counts.

    Raises:
        typer.Exit: some were refused.
    """
    from whimbrel.errors import WhimbrelError

    found: Counter[str] = Counter()
    refused: list[dict[str, str]] = []
    try:
        while some := list(islice(letters, AT_ONCE)):
            if work is None:
                found["chosen"] += len(some)
                continue
            for letter, outcome in zip(some, work(some), strict=True):
                found[done if outcome.result == "done" else outcome.result] += 1
                if outcome.result == "refused":
                    refused.append({"message_id": letter.message.message_id, "why": outcome.why})
    except WhimbrelError:
        if found:
            note(f"{found[done]} were {done} before this; the command may be repeated")
        raise
    rows: Iterable[tuple[str, int]] = found.items() or [("chosen", 0)]
    value: dict[str, Any] = {key.replace(" ", "_"): count for key, count in rows}
    emit({**value, "refusals": refused}, output, columns=PARTS, rows=list(rows))
    for one in refused:
        note(f"{one['message_id']}: {one['why']}")
    if refused:
        raise typer.Exit(1)


def letter_object(letter: "DeadLetter") -> dict[str, Any]:
    """Return a letter for JSON."""
    fields = {"group": letter.group, "origin_topic": letter.origin_topic, "attempts": letter.attempts}
    # What is in the record is of a consumer of the dead-letter topic, and none has got it.
    return fields | as_object(letter.message) | {"delivery_attempt": letter.attempts}


def row(letter: "DeadLetter") -> tuple[object, ...]:
    message = letter.message
    return (
        message.message_id,
        letter.origin_topic or None,
        message.tag,
        " ".join(message.keys) or None,
        letter.attempts,
        time_text(message.stored_at),
        message.queue.broker_name,
        message.queue_offset,
    )


def details(letter: "DeadLetter") -> Iterator[tuple[str, object]]:
    """Yield what is known of a letter."""
    message = letter.message
    yield "message id", message.message_id
    yield "from topic", letter.origin_topic or "(unknown)"
    yield "dead letters", f"{message.topic}, offset {message.queue_offset} on {message.queue.broker_name}"
    yield "type", message.type.value
    yield "message group", message.message_group
    yield "tag", message.tag
    yield "keys", " ".join(message.keys) or None
    yield "attempts", letter.attempts
    yield "born (UTC)", time_text(message.born_at)
    yield "dead since (UTC)", time_text(message.stored_at)
    for key, value in sorted(message.properties.items()):
        yield f"property {key}", value
    yield "body", shown_body(message, 2000)

"""Whether the queues and positions that a person names are there; else a sentence that says what is. Pure.

    assign                           each queue exists on some broker
    startingOffsets, endingOffsets   topic, broker and queue exist, and the queue reaches to the offset

An offset below a queue's first message is no mistake of this kind: retention may have removed what was there,
which `failOnDataLoss` is about. Checkpoints are not checked: `Truncated` is about those.
"""

from collections.abc import Collection, Iterable

from whimbrel.spark.offsets import Key, Positions
from whimbrel.spark.options import OptionError, Subscription
from whimbrel.spark.planning import Extent

__all__ = ["beyond_end", "check_assigned", "check_known", "check_order", "unassigned"]

IDS_SHOWN_MAX = 12


def unassigned(subscription: Subscription, extents: Iterable[Key]) -> list[tuple[str, int]]:
    """Return the topics and ids of queues that are assigned, and that no broker has."""
    there = {(topic, queue_id) for topic, _, queue_id in extents}
    return [
        (topic, queue_id)
        for topic, queue_ids in subscription.assigned
        for queue_id in queue_ids
        if (topic, queue_id) not in there
    ]


def check_assigned(missing: Iterable[tuple[str, int]], extents: Collection[Key]) -> None:
    """Raise OptionError for the first of the queues that `unassigned` found.

    Args:
        missing: those.
        extents: all queues of the topics that are named.
    """
    for topic, queue_id in missing:
        raise OptionError(f"option assign: {topic} has no queue {queue_id}; {queues_text(topic, extents)}")


def check_known(name: str, named: Positions, extents: Collection[Key], unreachable: Collection[str]) -> None:
    """Raise OptionError for a position in a queue that is not read, or is not there.

    Args:
        name: of the option.
        named: the positions that it gives.
        extents: the queues that are read.
        unreachable: brokers that did not answer, whose queues are not known.
    """
    for key in sorted(named):
        topic, broker, queue_id = key
        if key in extents:
            continue
        if broker in unreachable:
            raise OptionError(f"option {name}: broker {broker} of {topic} does not answer now")
        topics = sorted({each for each, _, _ in extents})
        if topic not in topics:
            reads = ", ".join(topics[:IDS_SHOWN_MAX]) or "none by its name"
            raise OptionError(f"option {name}: this query reads no topic {topic}; it reads {reads}")
        what = f"{topic} has no broker {broker}"
        if any((topic, broker) == (each, other) for each, other, _ in extents):
            what = f"{topic} has no queue {queue_id} on {broker}"
        raise OptionError(
            f"option {name}: {what}, or it is not read; {queues_text(topic, extents)};"
            " failOnDataLoss=false passes over it"
        )


def beyond_end(name: str, key: Key, offset: int, extent: Extent) -> OptionError:
    """Return the error for a position behind a queue's end."""
    topic, broker, queue_id = key
    holds = f"it holds {extent.first} to {extent.end - 1}, and the next one is {extent.end}"
    if extent.first >= extent.end:
        holds = f"it is empty, and the next one is {extent.end}"
    return OptionError(
        f"option {name}: {topic}, queue {queue_id} of {broker} does not reach to offset {offset}: {holds}"
    )


def check_order(starting: int | Positions, ending: int | Positions) -> None:
    """Raise OptionError for a queue whose given end lies before its given start."""
    if isinstance(starting, int) or isinstance(ending, int):
        return
    for key in sorted(starting.keys() & ending.keys()):
        if 0 <= ending[key] < starting[key]:
            topic, broker, queue_id = key
            raise OptionError(
                f"options startingOffsets, endingOffsets: {topic}, queue {queue_id} of {broker}: from"
                f" {starting[key]} to {ending[key]} is not a range"
            )


def queues_text(topic: str, extents: Collection[Key]) -> str:
    """Return which queues a topic has, by broker."""
    brokers: dict[str, list[int]] = {}
    for each, broker, queue_id in sorted(extents):
        if each == topic:
            brokers.setdefault(broker, []).append(queue_id)
    found = [f"{ids_text(ids)} on {broker}" for broker, ids in brokers.items()]
    return f"it has {', '.join(found)}" if found else "it has no queues"


def ids_text(ids: list[int]) -> str:
    """Return some queue ids, which rise."""
    if len(ids) > 2 and ids[-1] - ids[0] == len(ids) - 1:
        return f"queues {ids[0]} to {ids[-1]}"
    more = ", ..." if len(ids) > IDS_SHOWN_MAX else ""
    shown = ", ".join(map(str, ids[:IDS_SHOWN_MAX]))
    return f"queue{'s' if len(ids) > 1 else ''} {shown}{more}"

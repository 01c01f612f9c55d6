"""Where sent messages wait that can't be delivered yet, by their kind (`send.py Detour`).

a time of delivery    a timer record, and a handle to recall it. A time that has come, or is 0, makes no
                      difference to a plain message: it is delivered at once, as a message of this type,
                      and there is nothing to recall. Of several messages all wait, if one does.
a transaction         a half, named by its message's id
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from whimbrel.broker.engine.message import MessageExtras
from whimbrel.broker.timing.records import number, waiting
from whimbrel.broker.timing.timers import Timers
from whimbrel.broker.transactions.records import make_half
from whimbrel.broker.transactions.transactions import Transactions
from whimbrel.model.properties import REAL_TOPIC, TIMER_OUT_MS
from whimbrel.model.recall import RecallHandle
from whimbrel.model.topic import MessageType
from whimbrel.store.codec import RecordDraft, property_of

__all__ = ["DelayDetour", "HalfDetour", "Producers"]


class DelayDetour:
    """See `engine/send.py Detour`."""

    kind = MessageType.DELAY

    def __init__(self, broker_name: str, timers: Timers, clock: Callable[[], int]) -> None:
        """Take the name that a master and its slaves share; `clock` gives epoch milliseconds."""
        self.broker_name, self.timers, self.clock = broker_name, timers, clock

    def redirect(
        self, drafts: Sequence[RecordDraft], special: Sequence[MessageExtras], client: str
    ) -> list[RecordDraft] | None:
        """Return the records that wait; None when all are due."""
        now = self.clock()
        if all(extras.delivery_ms <= now for extras in special):
            return None
        return [
            waiting(draft, extras.delivery_ms or now) for draft, extras in zip(drafts, special, strict=True)
        ]

    def appended(self, drafts: Sequence[RecordDraft], places: Sequence[Any]) -> None:
        """Have the records get their units at once."""
        for draft, place in zip(drafts, places, strict=True):
            self.timers.take(draft.properties, place)

    def handle(self, draft: RecordDraft) -> str:
        """Return the handle by which the sender recalls the message."""
        return RecallHandle(
            topic=property_of(draft.properties, REAL_TOPIC.encode()).decode(),
            broker_name=self.broker_name,
            time_ms=number(property_of(draft.properties, TIMER_OUT_MS.encode()).decode()) + 1,
            message_id=draft.keys[0],
        ).encode()


class Producers(Protocol):
    """Who can be asked about the transactions of a topic (`rpc/server/producers.py`)."""

    def name(self, topic: str, client_id: str) -> None:
        """Note that a client produces to a topic."""


class HalfDetour:
    """See `engine/send.py Detour`."""

    kind = MessageType.TRANSACTION

    def __init__(self, transactions: Transactions, producers: Producers) -> None:
        """Take what knows the transactions, and who is told of clients that send halves."""
        self.transactions, self.producers = transactions, producers

    def redirect(
        self, drafts: Sequence[RecordDraft], special: Sequence[MessageExtras], client: str
    ) -> list[RecordDraft]:
        """Return the half of a transaction's message."""
        self.transactions.check_room()
        topic = drafts[0].topic
        for draft in drafts:
            make_half(draft)
        if client:
            self.producers.name(topic, client)
        return list(drafts)

    def appended(self, drafts: Sequence[RecordDraft], places: Sequence[Any]) -> None:
        """Nothing: halves are taken up from their queue, when something is asked about them."""

    def handle(self, draft: RecordDraft) -> str:
        """Return the transaction's id."""
        return draft.keys[0]

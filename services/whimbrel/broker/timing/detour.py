"""What a sent message with a time of delivery becomes: a timer record, and a handle to recall it.

A time that has come, or is 0, makes no difference to a plain message: it is delivered at once, as a message
of this type, and there is nothing to recall. In a request of several messages all wait, if one does.
"""

from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.broker.produce.admission import MessageExtras
from whimbrel.broker.timing.records import number, waiting
from whimbrel.broker.timing.timers import Timers
from whimbrel.model.properties import REAL_TOPIC, TIMER_OUT_MS
from whimbrel.model.recall import RecallHandle
from whimbrel.store.codec import RecordDraft, property_of

__all__ = ["DelayDetour"]


class DelayDetour:
    """See `api.send.Detour`."""

    def __init__(self, broker_name: str, timers: Timers, clock: Callable[[], int]) -> None:
        """Take the name that a master and its slaves share; `clock` gives epoch milliseconds."""
        self.broker_name, self.timers, self.clock = broker_name, timers, clock

    def redirect(
        self, drafts: Sequence[RecordDraft], special: Sequence[MessageExtras]
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

    def stored(self, entry: Any, draft: RecordDraft, place: Any) -> None:
        """Tell the sender how to recall the message."""
        entry.recall_handle = RecallHandle(
            topic=property_of(draft.properties, REAL_TOPIC.encode()).decode(),
            broker_name=self.broker_name,
            time_ms=number(property_of(draft.properties, TIMER_OUT_MS.encode()).decode()) + 1,
            message_id=draft.keys[0],
        ).encode()

"""Appends records that the broker itself makes: dead letters, delayed messages that are due, transactions.

    cause (a message at its last attempt, a timer, a commit)
       | append(draft, done)
       |    refused          done(error): nothing is stored
       |    stored           done(None) once it is as durable and replicated as the broker's mode asks
       |    not confirmed    done(error): it is stored, but flush or slaves did not confirm it in time
       v
    done(None): only now the cause may be marked done; on an error it is tried again later

So a crash at any moment leaves the cause undone, or its record stored, and never neither. A crash between the
two, like an append that is not confirmed, leads to a second record of the same cause, unless whoever appends
looks for the first one and has it confirmed instead (`dead_letters.py`).

What a client may not do does not matter here: the checks of topic type, name and size are left out
(`engine/send_checks.py` has them), and a topic that is missing is made. What protects the log stays: the
broker must be allowed to write, enough slaves must be near, and the store must have room.

Born time and born host, flag, body and its compression stay those of the message; so do its properties, as
far as there is room beside the broker's own (`copied_text.py`). `done` may be called before `append` returns,
and is called on the loop's thread.
"""

import logging
from collections.abc import Callable, Collection
from typing import Any, Protocol

from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.copied_text import LEFT_OUT_MARK, SEALED_BYTES_MAX, copied_text
from whimbrel.broker.produce.replay import host_bytes
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import Throttled, WhimbrelError
from whimbrel.model.properties import PROPERTIES_LEFT_OUT
from whimbrel.model.topic import TopicConfig
from whimbrel.store.codec import (
    COMPRESSION_BITS,
    PROPERTIES_BYTES_MAX,
    TRANSACTION_COMMIT,
    RecordDraft,
    StoredMessage,
)

__all__ = ["IN_FLIGHT_MAX", "Done", "InternalAppender", "OnwardTarget", "onward_draft"]

# Appends that wait for flush or slaves. Clients' sends wait beside them, so this is a part of what the
# appender lets wait; what comes beyond is tried again when its cause is.
IN_FLIGHT_MAX = 4096
SHORTENED_TOLD_EACH = 1000  # of copies without some properties: the first one and each of so many has a line

# What a record's flag says of the message, not of the record. A prepared or a rolled back one never goes on.
KEPT_BITS = COMPRESSION_BITS | TRANSACTION_COMMIT

Done = Callable[[WhimbrelError | None], None]

logger = logging.getLogger(__name__)


class OnwardTarget(Protocol):
    """Where a stored message goes on to, and what changes on the way."""

    @property
    def topic(self) -> str:
        """The target."""

    @property
    def added(self) -> Collection[tuple[str, str]]:
        """Properties that are set, in place of those of the same names."""

    @property
    def removed(self) -> Collection[str]:
        """Names of properties that are left out."""

    @property
    def reconsume_times(self) -> int | None:
        """None keeps the message's."""


class InternalAppender:
    """The broker's own appends beside those of clients. On the loop's thread.

    Attributes:
        in_flight: how many are stored and wait to be confirmed.
        on_appended: called with each record and its place, so that it can be traced.
    """

    def __init__(
        self,
        topics: TopicTable,
        appender: RecordAppender,
        *,
        store_host: Callable[[], bytes],
        sealed: bool = False,
    ) -> None:
        """Take the log's appender.

        Args:
            topics: the table. appender: of the log. store_host: returns this broker's address as records
            hold it. sealed: the log seals its records.
        """
        self.topics, self.appender, self.store_host = topics, appender, store_host
        self.room = SEALED_BYTES_MAX if sealed else PROPERTIES_BYTES_MAX
        self.in_flight = 0
        self.on_appended: Callable[[RecordDraft, Any], None] | None = None
        self.append_count = 0  # rotates through queues
        self.shortened = 0  # copies without some of their message's properties

    def append(self, draft: RecordDraft, done: Done) -> bool:
        """Append a record; `done` gets None when it is durable, else why it is not.

        Returns:
            Whether it is stored.
        """
        try:
            self.check_room()
            if len(draft.properties) > self.room:
                draft.properties = copied_text(draft.properties, room=self.room)
            if LEFT_OUT_MARK in draft.properties:
                self.tell_shortened(draft)
            (appended,) = self.appender.append([draft])
        except WhimbrelError as error:
            done(error)
            return False
        if self.on_appended is not None:
            self.on_appended(draft, appended)
        self.when_durable(appended.end, done)
        return True

    def confirm(self, end: int, done: Done) -> None:
        """Call `done` with None once the log up to `end`, its present end, is durable; else why it is not."""
        try:
            self.check_room()
            self.appender.check_writable()
        except WhimbrelError as error:
            done(error)
            return
        self.when_durable(end, done)
        self.appender.complete_waiting()  # without an append there is no end of a tick that does this

    def check_room(self) -> None:
        """Raise Throttled when too many records wait to be confirmed."""
        if self.in_flight >= IN_FLIGHT_MAX:
            raise Throttled(f"{IN_FLIGHT_MAX} records of the broker itself wait to be confirmed already")

    def when_durable(self, end: int, done: Done) -> None:
        if not self.appender.waits:
            done(None)
            return
        self.in_flight += 1

        def confirmed(error: WhimbrelError | None) -> None:
            self.in_flight -= 1
            done(error)

        self.appender.when_durable(end, confirmed)

    def hand_on(self, message: StoredMessage, target: OnwardTarget, done: Done) -> None:
        """Append a stored message to another topic, which is made with one queue where it is missing."""
        try:
            queue_id = self.queue_of(target.topic)
            draft = onward_draft(message, target, queue_id, self.store_host())
        except WhimbrelError as error:
            done(error)
            return
        self.append(draft, done)

    def tell_shortened(self, draft: RecordDraft) -> None:
        """Say that a copy has not all properties of its message."""
        if self.shortened % SHORTENED_TOLD_EACH == 0:
            logger.warning(
                "a copy for %s, of message %s, has no room for all properties of that: its property %s says"
                " which it lacks (%d such copies before)",
                draft.topic, next(iter(draft.keys), "without an id"), PROPERTIES_LEFT_OUT, self.shortened,
            )  # fmt: skip
        self.shortened += 1

    def queue_of(self, name: str) -> int:
        """Return a queue of the topic: each in rotation.

        Raises:
            StoreFull: the topic is missing and can't be written down.
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = TopicConfig(name=name, read_queues=1, write_queues=1)
            self.topics.put(topic)
        self.append_count += 1
        return self.append_count % topic.onward_queues


def onward_draft(
    message: StoredMessage, target: OnwardTarget, queue_id: int, store_host: bytes
) -> RecordDraft:
    """Return a stored message as a record for another topic."""
    times = target.reconsume_times
    return RecordDraft.from_properties(
        topic=target.topic,
        queue_id=queue_id,
        body=message.body,
        properties=copied_text(message.properties_raw, target.added, target.removed),
        born_timestamp=message.born_timestamp,
        born_host=host_bytes(message.born_host),
        store_host=store_host,
        flag=message.flag,
        sys_flag=message.sys_flag & KEPT_BITS,
        reconsume_times=message.reconsume_times if times is None else times,
    )

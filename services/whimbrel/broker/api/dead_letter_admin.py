"""DeadLetterService: shows a group's dead letters, puts them back into their topics, drops them.

Which are settled is kept as the progress of a group of its own, `whimbrel-dlq-<group>`, on the dead-letter
topic: written down before the answer, sent to slaves, and forgotten with the topic.

    left --replay--> in its topic, durable --> settled      a crash between the two: it is found in its topic
      '---drop-------------------------------> settled

**Put back** is what the dead letter holds, under its message id, without what only a dead letter has, and
with where it stood as REPLAYED_FROM (`produce/replay.py`). By that it is found again, by the index under its
id, so that it is put back once, also when a job of Spark did so. It goes into the queue of the original while
that is still in the log. Else a message with a message group goes where a producer's would, were this the
topic's only broker, one with a priority to the priority's queue, and others take turns.
"""

from collections.abc import Callable
from typing import Any

from whimbrel.broker.api.message_codec import Inflation, delivered
from whimbrel.broker.consume.dead_letters import attempts_max
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.placement import queue_of_group
from whimbrel.broker.produce.replay import ReplayedMessage, Searches, Source, draft_of
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    CorruptRecord,
    Forbidden,
    IllegalOffset,
    IllegalTopic,
    NotWritable,
    StoreFull,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.dead_letter import LETTER_PROPERTIES, attempts_of, cause_of, origin_of
from whimbrel.model.limits import ATTEMPT_MAX, DEAD_LETTERS_MAX, GROUP_CHARS_MAX
from whimbrel.model.names import DEAD_LETTER_PREFIX, SETTLED_PREFIX, check_group
from whimbrel.model.properties import PRIORITY, REPLAYED_FROM, SHARDING_KEY
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.model.wire import DEAD_LETTER_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import dead_letter_service_pb2 as letters
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod
from whimbrel.store.codec import RECORD_BYTES_MAX, StoredMessage, decode_record
from whimbrel.store.store import MessageStore

__all__ = ["DeadLetterAdmin"]

LISTED_MAX = 64
LISTED_BYTES_MAX = 1 << 20  # of bodies in an answer, unless it is one letter
LEFT_OUT = frozenset(name.encode() for name in (*LETTER_PROPERTIES, REPLAYED_FROM))
PLACE_DIGITS = 16  # of the offset in the log, at the end of an offset message id

DONE = letters.DEAD_LETTER_RESULT_DONE
BEFORE = letters.DEAD_LETTER_RESULT_BEFORE
GONE = letters.DEAD_LETTER_RESULT_GONE
REFUSED = letters.DEAD_LETTER_RESULT_REFUSED


class DeadLetterAdmin:
    """Handles the calls on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        consumption: GroupConsumption,
        store: MessageStore,
        appender: RecordAppender,
        *,
        broker_name: str,
        master: bool,
        store_host: Callable[[], bytes],
    ) -> None:
        """Take what is needed; `store_host` returns this broker's address as records hold it."""
        self.topics, self.groups, self.positions = topics, groups, consumption.positions
        self.store, self.appender = store, appender
        self.broker_name, self.master = broker_name, master
        self.store_host = store_host
        self.searches = Searches(store)
        self.turn = 0

    def service(self) -> Service:
        """Return the service for the transport."""
        return Service(
            DEAD_LETTER_SERVICE,
            (
                UnaryMethod("ListDeadLetters", letters.ListDeadLettersRequest, self.list_letters),
                UnaryMethod("ReplayDeadLetters", letters.ReplayDeadLettersRequest, self.replay),
                UnaryMethod("DropDeadLetters", letters.DropDeadLettersRequest, self.drop),
            ),
        )

    # Calls

    def list_letters(self, call: Call, request: letters.ListDeadLettersRequest) -> Any:
        """Show what is left, by place."""
        topic, settled = names_of(request.group)
        config = self.topics.get(topic)
        response = letters.ListDeadLettersResponse()
        first = getattr(request, "from")
        count = min(request.count, LISTED_MAX) if request.count > 0 else LISTED_MAX
        size = 0
        known = self.groups.get(request.group)
        most = None if known is None else attempts_max(known)
        inflation = Inflation() if request.with_bodies else Inflation(0)
        for queue_id in [] if config is None else self.store.queue_ids(topic, config.read_queues):
            if queue_id < first.queue_id:
                continue
            start = first.offset if queue_id == first.queue_id else 0
            room = count - len(response.letters)
            offsets = self.positions.undone(settled, topic, queue_id, start, room + 1)
            for offset in offsets[:room]:
                message = self.read(topic, queue_id, offset)
                if message is None:
                    continue  # damaged
                attempt = min(max(message.reconsume_times, 0), ATTEMPT_MAX - 1) + 1
                shown = delivered(message, attempt=attempt, inflation=inflation)
                if not request.with_bodies:
                    shown.ClearField("body")
                    shown.system_properties.ClearField("body_encoding")
                if size and size + len(shown.body) > LISTED_BYTES_MAX:
                    response.next.queue_id, response.next.offset = queue_id, offset
                    return response
                size += len(shown.body)
                response.letters.add(
                    message=shown,
                    origin_topic=origin_of(message.properties, request.group),
                    attempts=attempts_of(message.properties, message.reconsume_times, most),
                )
            if len(offsets) > room:
                response.next.queue_id, response.next.offset = queue_id, offsets[room]
                return response
        return response

    def drop(self, call: Call, request: letters.DropDeadLettersRequest) -> Any:
        """Have letters count as settled."""
        topic, settled = self.check(request.group, request.places)
        response = letters.DropDeadLettersResponse()
        done: list[tuple[int, int]] = []
        for place in request.places:
            result = self.standing(topic, settled, place)
            response.outcomes.add(place=place, result=result)
            if result == DONE:
                done.append((place.queue_id, place.offset))
        if done:
            self.positions.finish(settled, topic, done)
        return response

    def replay(self, call: Call, request: letters.ReplayDeadLettersRequest) -> Any:
        """Put letters back; answer when they are safe, and settled."""
        topic, settled = self.check(request.group, request.places)
        self.appender.check_writable()
        response = letters.ReplayDeadLettersResponse()
        done: list[tuple[int, int]] = []
        for place in request.places:
            outcome = response.outcomes.add(place=place, result=self.standing(topic, settled, place))
            if outcome.result != DONE:
                continue
            try:
                self.put_back(request.group, topic, place, outcome)
            except WhimbrelError as error:
                outcome.result, outcome.why = REFUSED, str(error)
            if outcome.result == DONE:
                done.append((place.queue_id, place.offset))
        return self.when_safe(response, settled, topic, done)

    # Inside

    def check(self, group: str, places: Any) -> tuple[str, str]:
        """Return the dead-letter topic, and the group of what is settled, made where it is missing."""
        if not self.master:
            raise NotWritable("this is a slave: dead letters are put back and dropped at its master")
        topic, settled = names_of(group)
        if not 0 < len(places) <= DEAD_LETTERS_MAX:
            raise BadRequest(f"{len(places)} dead letters in a call: 1 to {DEAD_LETTERS_MAX} are allowed")
        if self.groups.get(settled) is None:
            self.groups.add(GroupConfig(name=settled))
        return topic, settled

    def standing(self, topic: str, settled: str, place: letters.DeadLetterPlace) -> letters.DeadLetterResult:
        """Return DONE for a letter that is left."""
        low, high = self.store.queue_range(topic, place.queue_id)
        if not low <= place.offset < high:
            return GONE
        return BEFORE if self.positions.is_done(settled, topic, place.queue_id, place.offset) else DONE

    def read(self, topic: str, queue_id: int, offset: int) -> StoredMessage | None:
        """Return a letter; None for one that can't be read."""
        try:
            for physical_offset, size, _ in self.store.queue_units(topic, queue_id, offset, 1):
                return decode_record(self.store.read(physical_offset, size))
        except (CorruptRecord, IllegalOffset):
            pass
        return None

    def put_back(
        self, group: str, topic: str, place: letters.DeadLetterPlace, outcome: letters.DeadLetterOutcome
    ) -> None:
        """Append a letter to its topic, unless it is there.

        Raises:
            WhimbrelError: it can't be; the sentence says what to do.
        """
        message = self.read(topic, place.queue_id, place.offset)
        if message is None:
            raise CorruptRecord("its record can't be read; drop it")
        origin = origin_of(message.properties, group)
        if not origin:
            raise IllegalTopic(
                "it does not tell which topic it was sent to; read it from the dead-letter topic"
            )
        target = self.topics.get(origin)
        if target is None:
            raise TopicNotFound(f"there is no topic {origin} here any more; make it, or drop the dead letter")
        if not target.writable or self.topics.is_system(origin):
            raise Forbidden(f"topic {origin} takes no messages here")
        outcome.topic = origin
        source = Source(self.broker_name, topic, place.queue_id)
        replayed = ReplayedMessage(
            source_offset=place.offset,
            born_ms=message.born_timestamp,
            born_host=message.born_host,
            flag=message.flag,
            sys_flag=message.sys_flag,
            properties=without_letter(message.properties_raw),
            body=message.body,
            message_id=message.offset_message_id,
        )
        if not self.searches.contains(origin, source, replayed):
            queue_id = self.queue_of(message, target)
            self.appender.append([draft_of(replayed, origin, queue_id, source, self.store_host())])

    def queue_of(self, message: StoredMessage, target: TopicConfig) -> int:
        """Return the queue into which a letter goes."""
        queues = target.onward_queues
        original = self.original_of(cause_of(message.properties), target.name)
        if original is not None and original.queue_id < queues:
            return original.queue_id
        priority = message.properties.get(PRIORITY, "")
        if priority.isdecimal():
            return min(int(priority), queues - 1)
        message_group = message.properties.get(SHARDING_KEY)
        if message_group:
            return queue_of_group(message_group, queues)
        self.turn += 1
        return self.turn % queues

    def original_of(self, message_id: str, topic: str) -> StoredMessage | None:
        """Return the record of an offset message id while the log has it."""
        try:
            place = int(message_id[-PLACE_DIGITS:], 16)
            size = int.from_bytes(self.store.read_log(place, 4), "big")
            if not 0 < size <= RECORD_BYTES_MAX:
                return None
            found = decode_record(self.store.read(place, size))
        except (ValueError, CorruptRecord, IllegalOffset):
            return None
        return found if found.topic == topic and found.offset_message_id == message_id else None

    def when_safe(
        self,
        response: letters.ReplayDeadLettersResponse,
        settled: str,
        topic: str,
        done: list[tuple[int, int]],
    ) -> Any:
        """Settle and answer when the log is as durable as the mode asks, up to its present end."""
        if not done:
            return response
        deferred: Deferred[Any] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            if error is None:
                try:
                    self.positions.finish(settled, topic, done)
                except StoreFull as full:
                    error = full
            deferred.settle(response, error)

        if self.appender.waits:
            self.appender.when_durable(self.store.written, answer)
            self.appender.complete_waiting()  # without an append there is no end of a tick that does this
        else:
            answer(None)
        return deferred


def names_of(group: str) -> tuple[str, str]:
    """Return the topic of a group's dead letters, and the group whose progress says what is settled.

    Raises:
        IllegalGroup: there is no such group.
        BadRequest: the group's name is too long for either.
    """
    check_group(group)
    if len(SETTLED_PREFIX + group) > GROUP_CHARS_MAX:
        raise BadRequest(f"a group with a name of {len(group)} characters has no dead letters")
    return DEAD_LETTER_PREFIX + group, SETTLED_PREFIX + group


def without_letter(properties: bytes) -> bytes:
    """Return a property text without what only a dead letter has."""
    kept = [pair for pair in properties.split(b"\x02") if pair and pair.partition(b"\x01")[0] not in LEFT_OUT]
    return b"".join(pair + b"\x02" for pair in kept)

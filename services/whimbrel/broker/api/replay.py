"""The two calls that replay archived messages into topics; `produce/replay.py` decides what is stored.

They are part of the admin service, and refused unless the broker's `accept_replays` is set: their caller
chooses queue, born time and id of messages, which a producer may not.

An answer means what one to a send means: it leaves when the log is on disk and at slaves as far as the broker
is set to wait for that. This must hold for messages that a retry finds in the queue, too, so both calls wait
for the present end of the log.
"""

from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.replay import (
    ReplayedMessage,
    Search,
    Searches,
    Source,
    already_stored,
    check_batch,
    draft_of,
)
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    Forbidden,
    IllegalTopic,
    MessageTypeConflict,
    NotReady,
    NotWritable,
    QueueNotFound,
    RequestError,
    TopicNotFound,
)
from whimbrel.model.names import GROUP_TOPIC_PREFIXES, check_topic
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.server.handlers import Call, UnaryMethod
from whimbrel.store.codec import RecordDraft, record_size
from whimbrel.store.master_store import Appended
from whimbrel.store.store import MessageStore

__all__ = ["ReplayService"]

# Appended at once: all of them have to fit into the current log file, or its rest is left blank.
RUN_MAX, RUN_BYTES_MAX = 64, 64 << 10
REPLAYABLE = (MessageType.NORMAL, MessageType.FIFO, MessageType.MIXED)


class ReplayService:
    """Handles the calls on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        appender: RecordAppender,
        store: MessageStore,
        *,
        master: bool,
        accepts: bool,
        store_host: Callable[[], bytes],
    ) -> None:
        """Take what is needed; `store_host` returns this broker's address as records hold it."""
        self.topics, self.appender, self.store = topics, appender, store
        self.master, self.accepts = master, accepts
        self.store_host = store_host
        self.searches = Searches(store)
        self.forget = self.searches.forget

    def methods(self) -> tuple[UnaryMethod, ...]:
        """Return the calls for the admin service."""
        return (
            UnaryMethod("DescribePreserved", admin.DescribePreservedRequest, self.describe),
            UnaryMethod("AppendPreserved", admin.AppendPreservedRequest, self.append),
        )

    def describe(self, call: Call, request: admin.DescribePreservedRequest) -> Any:
        """Return how far a source was replayed, as far as one iteration of the loop finds out."""
        self.check(request.topic, request.queue_id)
        source = source_of(request.source)
        search, left = self.search(request.topic, request.queue_id, source, first=request.with_first)
        response = admin.DescribePreservedResponse(
            complete=not left,
            left=left,
            last_source_offset=search.last.get(source, -1) if not left else -1,
            first_source_offset=search.first.get(source, -1) if not left else -1,
        )
        return response if left else self.when_safe(response)

    def append(self, call: Call, request: admin.AppendPreservedRequest) -> Any:
        """Append what is not in the queue yet; answer when it is safe."""
        topic = self.check(request.topic, request.queue_id)
        source = source_of(request.source)
        messages = [message_of(record) for record in request.records]
        check_batch(messages, source, selection=request.selection)
        response = admin.AppendPreservedResponse(first_offset=-1, last_offset=-1)
        if request.selection:
            new = [one for one in messages if not self.searches.contains(topic.name, source, one)]
            response.skipped = len(messages) - len(new)
            self.store_all(topic, request.queue_id, source, new, response, None)
            response.last_source_offset = -1
            return self.when_safe(response)
        search, left = self.search(topic.name, request.queue_id, source, first=False)
        if left:
            raise NotReady(
                f"{left} messages of {topic.name}/{request.queue_id} are to be looked through first:"
                " call DescribePreserved until it is complete"
            )
        last = search.last.get(source, -1)
        offsets = [one.source_offset for one in messages]
        response.skipped = already_stored(source, offsets, last=last, after=request.after_offset)
        self.store_all(topic, request.queue_id, source, messages[response.skipped :], response, search)
        response.last_source_offset = search.last.get(source, -1)
        return self.when_safe(response)

    def check(self, name: str, queue_id: int) -> TopicConfig:
        """Return the topic if messages may be replayed into a queue of it."""
        if not self.accepts:
            raise Forbidden(
                "this broker takes no replayed messages: start it with --accept-replays true"
                " (`whimbrel dev --accept-replays`)"
            )
        if not self.master:
            raise NotWritable("this is a slave: messages are put back at its master")
        self.appender.check_writable()
        check_topic(name, system_allowed=True)
        if self.topics.is_system(name) or name.startswith(GROUP_TOPIC_PREFIXES):
            raise IllegalTopic(f"{name} is the brokers' own: messages are put back into ordinary topics")
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"no topic {name}: create it with as many queues as the source had")
        if not topic.writable:
            raise Forbidden(f"topic {name} has no writable queue here")
        if not 0 <= queue_id < topic.write_queues:
            raise QueueNotFound(
                f"topic {name} has no queue {queue_id} here, only 0 to {topic.write_queues - 1}"
            )
        if topic.message_type not in REPLAYABLE:
            raise MessageTypeConflict(
                f"topic {name} takes {topic.message_type} messages, and none can be put back into it"
            )
        return topic

    def search(self, topic: str, queue_id: int, source: Source, *, first: bool) -> tuple[Search, int]:
        search = self.searches.of(topic, queue_id, self.store.queues.get(topic, queue_id))
        return search, self.searches.advance(search, topic, queue_id, source, first=first)

    def store_all(
        self,
        topic: TopicConfig,
        queue_id: int,
        source: Source,
        messages: Sequence[ReplayedMessage],
        response: admin.AppendPreservedResponse,
        search: Search | None,
    ) -> None:
        """Append messages in their order, in short runs; what can't be stored is left out, and reported."""
        run: list[tuple[int, RecordDraft]] = []
        size = 0
        for message in messages:
            try:
                draft = draft_of(message, topic.name, queue_id, source, self.store_host())
            except RequestError as error:
                response.refusals.add(source_offset=message.source_offset, why=str(error))
                continue
            bytes_here = record_size(draft)
            if run and (len(run) >= RUN_MAX or size + bytes_here > RUN_BYTES_MAX):
                self.store_run(run, source, response, search)
                run, size = [], 0
            run.append((message.source_offset, draft))
            size += bytes_here
        self.store_run(run, source, response, search)

    def store_run(
        self,
        run: Sequence[tuple[int, RecordDraft]],
        source: Source,
        response: admin.AppendPreservedResponse,
        search: Search | None,
    ) -> None:
        if not run:
            return
        appended: list[Appended] = self.appender.append([draft for _, draft in run])
        response.stored += len(appended)
        if response.first_offset < 0:
            response.first_offset = appended[0].queue_offset
        response.last_offset = appended[-1].queue_offset
        if search is not None:
            if source not in search.last:
                search.first[source] = run[0][0]
            search.last[source] = run[-1][0]
            search.queue = self.store.queues.get(run[0][1].topic, run[0][1].queue_id)

    def when_safe(self, response: Any) -> Any:
        """Answer when the log is as durable as the mode asks, up to its present end."""
        if not self.appender.waits:
            return response
        deferred: Deferred[Any] = Deferred()
        self.appender.when_durable(self.store.written, lambda error: deferred.settle(response, error))
        self.appender.complete_waiting()  # without an append there is no end of a tick that does this
        return deferred


def source_of(source: admin.PreservedSource) -> Source:
    return Source(source.broker_name, source.topic, source.queue_id)


def message_of(record: admin.PreservedRecord) -> ReplayedMessage:
    born = record.born_at
    return ReplayedMessage(
        source_offset=record.source_offset,
        born_ms=born.seconds * 1000 + born.nanos // 1_000_000,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        properties=record.properties,
        body=record.body,
        message_id=record.message_id,
    )

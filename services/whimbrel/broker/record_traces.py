"""Spans of the broker: creation where no client traced it, append and flush on a master, dispatch on a slave.

On the loop's thread, for each request when tracing is on:

    create()       ──► a context for a message that came without one and is to be traced
    appended(...)  ──► spans of the sampled among the new records; their flush is waited for
    answered(...)  ──► spans of what `create` began
    flushed        ──► the flush spans, once the mark has passed their records
    committed      ──► the commit spans, where a majority commits, once the commit offset has

A context that a client sent is stored as it came; spans follow from the stored text alone. `send_service.py`
calls only for requests in which there is a context.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.timing.records import number
from whimbrel.errors import WhimbrelError
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.model.properties import TIMER_DELIVER_MS, TIMER_OUT_MS
from whimbrel.model.trace import TraceContext, TracedRecord
from whimbrel.store.codec import RecordDraft, property_of
from whimbrel.store.master_store import Appended, MasterStore
from whimbrel.store.slave_store import SlaveStore
from whimbrel.store.trace_scanner import ContextScanner, context_of
from whimbrel.telemetry import APPEND, BROKER_SERVICE, COMMIT, CREATE, DISPATCH, FLUSH, Attribute
from whimbrel.tracing import Tracer, identity, new_context, open_tracer

__all__ = ["BrokerTraces", "DispatchTraces", "RecordTraces"]

CREATED_MAX = 4096  # begun and not stored; requests that are refused leave theirs behind
# Records whose flush, or whose commit, is waited for; further ones have no span of it.
UNFLUSHED_MAX = UNCOMMITTED_MAX = 4096


class BrokerTraces:
    """The tracer of one broker, and what it is used for."""

    def __init__(self, options: BrokerOptions) -> None:
        """Open what the options name."""
        self.options = options
        own = {Attribute.ROLE: options.role, **identity(options.name, options.id)}
        self.tracer = open_tracer(options.trace_to, BROKER_SERVICE, own)
        self.close = self.tracer.close

    def of_sends(
        self,
        store: MasterStore,
        from_thread: Callable[[Callable[[], None]], None],
        epoch: int = 0,
        *,
        slaves: Callable[[], int],
    ) -> "RecordTraces":
        """Return what traces sends; it is called after each flush, beside the callback that is set already.

        Args:
            from_thread: has something called on the loop's thread.
            epoch: the leader's, where a majority commits; 0 elsewhere.
            slaves: returns how many are connected.
        """
        own = identity(self.options.name, self.options.id)
        traces = RecordTraces(self.tracer, own, flushed=lambda: store.flushed, epoch=epoch, slaves=slaves)
        other = store.on_flushed

        def flushed(end: int) -> None:
            if other is not None:
                other(end)
            if traces.waits:
                from_thread(traces.flushed)

        store.on_flushed = flushed
        return traces

    def of_dispatch(self, store: SlaveStore) -> "DispatchTraces":
        """Return what a slave's log is followed through."""
        return DispatchTraces(self.tracer, store, name=self.options.name, broker_id=self.options.id)


@dataclass(slots=True)
class Creation:
    """The span in place of the client's, until its message is stored and the send is answered."""

    context: TraceContext
    began_ns: int
    record: TracedRecord | None = None


class RecordTraces:
    """What a master traces of the messages that are sent to it."""

    def __init__(
        self,
        tracer: Tracer,
        own: Mapping[str, str | int],
        *,
        flushed: Callable[[], int],
        epoch: int = 0,
        slaves: Callable[[], int] = lambda: 0,
    ) -> None:
        """Take the broker's attributes, what gives the flushed end of the log, the leader's epoch, and what
        counts connected slaves.
        """
        self.slaves = slaves
        self.tracer = tracer
        self.read_flushed = flushed
        self.identity = own
        self.epoch = epoch
        self.created: dict[int, Creation] = {}  # begun for this request, by span id
        self.unflushed: deque[tuple[TracedRecord, int]] = deque()
        self.uncommitted: deque[tuple[TracedRecord, int]] = deque()

    def create(self) -> str:
        """Begin the trace of a message that came without a context; return the context to store."""
        if len(self.created) >= CREATED_MAX:
            self.created.clear()
        context = new_context()
        self.created[context.span_id] = Creation(context, time.time_ns())
        return str(context)

    def appended(
        self, drafts: Sequence[RecordDraft], appended: Sequence[Appended], began_ns: int
    ) -> list[Creation]:
        """Record the appends; return what `answered` is to be given."""
        created: list[Creation] = []
        for draft, place in zip(drafts, appended, strict=True):
            context = context_of(draft.properties)
            if context is not None:
                record = self.record(context, draft, place)
                self.record_append(record, began_ns)
                creation = self.created.pop(context.span_id, None)
                if creation is not None:
                    creation.record = record
                    created.append(creation)
        if self.created:
            self.created.clear()  # of requests that were refused
        return created

    def handed_on(self, draft: RecordDraft, place: Appended) -> None:
        """Record the append of a message that the broker itself stores once more: it keeps its context."""
        context = context_of(draft.properties)
        if context is not None:
            now_ns = time.time_ns()
            self.record_append(self.record(context, draft, place), now_ns, reason_of(draft, now_ns))

    @staticmethod
    def record(context: TraceContext, draft: RecordDraft, place: Appended) -> TracedRecord:
        return TracedRecord(
            context=context,
            offset=place.physical_offset,
            size=place.size,
            topic=draft.topic,
            queue_id=draft.queue_id,
            queue_offset=place.queue_offset,
            message_id=draft.keys[0],
        )

    def record_append(
        self, record: TracedRecord, began_ns: int, reason: Mapping[str, str | int] | None = None
    ) -> None:
        now_ns = time.time_ns()
        about = {**self.identity, **(reason or {}), Attribute.SLAVES: self.slaves()}
        if self.epoch:
            about[Attribute.EPOCH] = self.epoch
            if len(self.uncommitted) < UNCOMMITTED_MAX:
                self.uncommitted.append((record, now_ns))
        self.tracer.stage(APPEND, record, began_ns, now_ns, about)
        if len(self.unflushed) < UNFLUSHED_MAX:
            self.unflushed.append((record, now_ns))

    def answered(self, created: Sequence[Creation], error: WhimbrelError | None = None) -> None:
        """Record the creations of a request that is answered."""
        now_ns = time.time_ns()
        for creation in created:
            record = creation.record
            assert record is not None
            attributes: dict[str, str | int] = {
                Attribute.OPERATION: CREATE,
                Attribute.OPERATION_TYPE: CREATE,
                Attribute.TOPIC: record.topic,
                Attribute.MESSAGE_ID: record.message_id,
                **self.identity,
            }
            if error is not None:
                attributes[Attribute.ERROR] = error.reason
            self.tracer.record(
                f"{CREATE} {record.topic}",
                None,
                creation.began_ns,
                now_ns,
                attributes,
                own=creation.context,
                kind="producer",
                error="" if error is None else str(error),
            )

    @property
    def waits(self) -> bool:
        """Whether a flush is waited for; safe from any thread."""
        return bool(self.unflushed)

    def flushed(self) -> None:
        """Record the flushes that are done."""
        end, now_ns = self.read_flushed(), time.time_ns()
        while self.unflushed and self.unflushed[0][0].end <= end:
            record, began_ns = self.unflushed.popleft()
            self.tracer.stage(FLUSH, record, began_ns, now_ns, self.identity)

    def committed(self, end: int) -> None:
        """Record the commits that are done."""
        if self.uncommitted and self.uncommitted[0][0].end <= end:
            now_ns = time.time_ns()
            while self.uncommitted and self.uncommitted[0][0].end <= end:
                record, began_ns = self.uncommitted.popleft()
                self.tracer.stage(COMMIT, record, began_ns, now_ns, self.identity)


def reason_of(draft: RecordDraft, now_ns: int) -> dict[str, str | int]:
    """Return what `telemetry.py` has the append of a record say that the broker itself makes."""
    if draft.topic.startswith(DEAD_LETTER_PREFIX):
        return {Attribute.GROUP: draft.topic.removeprefix(DEAD_LETTER_PREFIX)}
    if not property_of(draft.properties, TIMER_OUT_MS.encode()):
        return {}
    due_ms = number(property_of(draft.properties, TIMER_DELIVER_MS.encode()).decode("utf-8", "replace"))
    return {Attribute.DUE: due_ms, Attribute.LATE: now_ns // 1_000_000 - due_ms}


class DispatchTraces:
    """Stands before a slave's store and traces the records that get their queue entries."""

    def __init__(self, tracer: Tracer, store: SlaveStore, *, name: str, broker_id: int) -> None:
        """Begin with what is dispatched from now on."""
        self.tracer = tracer
        self.store = store
        self.scanner = ContextScanner(store.read_log, store.dispatched, store.file_size)
        self.identity = identity(name, broker_id)

    def dispatch_ready(self, budget_bytes: int) -> bool:
        """Have the store dispatch a part of what has arrived; return whether more is there."""
        began_ns = time.time_ns()
        more = self.store.dispatch_ready(budget_bytes)
        if self.store.dispatched != self.scanner.position:
            now_ns = time.time_ns()
            for record in self.scanner.advance(self.store.dispatched):
                self.tracer.stage(DISPATCH, record, began_ns, now_ns, self.identity)
        return more

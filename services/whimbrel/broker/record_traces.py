"""Spans of the broker: creation where no client traced it, append and flush on a master, dispatch on a slave.

On the loop's thread, for each request when tracing is on:

    begin()              ──► the time
    wanted(topic, user)  ──► a context for a message that came without one, or ""
    appended(...)        ──► spans of the sampled among the new records; their flush is waited for
    answered(...)        ──► ends the spans that `wanted` began
    flushed              ──► the flush spans, once the mark has passed their records

A context that a client sent is stored as it came. `random` decides about a message without one, once a
message; spans follow from the stored text alone.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from random import random
from typing import Any

from whimbrel.broker.options import BrokerOptions
from whimbrel.model.trace import FALLBACK_PROPERTY, TraceContext, TracedRecord
from whimbrel.store.codec import RecordDraft
from whimbrel.store.store import Appended, MessageStore
from whimbrel.store.traced import ContextScanner, context_of
from whimbrel.telemetry import APPEND, BROKER_SERVICE, CREATE, DISPATCH, FLUSH, Attribute
from whimbrel.tracing import Tracer, identity, open_tracer, span_context

__all__ = ["BrokerTraces", "DispatchTraces", "RecordTraces"]

UNFLUSHED_MAX = 4096  # records whose flush is waited for; further ones have no flush span


class BrokerTraces:
    """The tracer of one broker, and what it is used for."""

    def __init__(self, options: BrokerOptions, store: MessageStore) -> None:
        """Open what the options name."""
        self._options, self._store = options, store
        own = {Attribute.ROLE: options.role, **identity(options.name, options.id)}
        self._tracer = open_tracer(options.trace_to, BROKER_SERVICE, own)
        self.close = self._tracer.close

    def of_sends(self, from_thread: Callable[[Callable[[], None]], None]) -> "RecordTraces":
        """Return what traces sends; it hears of flushes beside whoever does already.

        Args:
            from_thread: has something called on the loop's thread.
        """
        store = self._store
        traces = RecordTraces(
            self._tracer,
            name=self._options.name,
            ratio=self._options.trace_ratio,
            flushed=lambda: store.flushed,
        )
        other = store.on_flushed

        def flushed(end: int) -> None:
            if other is not None:
                other(end)
            if traces.waits:
                from_thread(traces.flushed)

        store.on_flushed = flushed
        return traces

    def of_dispatch(self) -> "DispatchTraces":
        """Return what a slave's log is followed through."""
        return DispatchTraces(self._tracer, self._store, name=self._options.name, broker_id=self._options.id)


class RecordTraces:
    """What a master traces of the messages that are sent to it."""

    def __init__(self, tracer: Tracer, *, name: str, ratio: float, flushed: Callable[[], int]) -> None:
        """Take the share of messages to sample, and what gives the flushed end of the log."""
        self._tracer = tracer
        self._ratio = ratio
        self._flushed = flushed
        self._identity = identity(name, 0)
        self._created: dict[int, Any] = {}  # spans of this request that `wanted` began, by span id
        self._unflushed: deque[tuple[TracedRecord, int]] = deque()

    def begin(self) -> int:
        """Begin a request; return the time in nanoseconds. Spans of one that was refused are forgotten."""
        self._created.clear()
        return time.time_ns()

    def wanted(self, topic: str, user: Any) -> str:
        """Return the context to add to a message that came without one, "" for none."""
        if self._ratio <= 0.0 or random() >= self._ratio or FALLBACK_PROPERTY in user:
            return ""
        attributes = {
            Attribute.OPERATION: CREATE,
            Attribute.OPERATION_TYPE: CREATE,
            Attribute.TOPIC: topic,
            **self._identity,
        }
        span = self._tracer.begin(f"{CREATE} {topic}", "producer", attributes)
        context = span_context(span)
        self._created[context.span_id] = span
        return str(context)

    def appended(
        self, drafts: Sequence[RecordDraft], appended: Sequence[Appended], began_ns: int
    ) -> list[Any]:
        """Record the appends; return what `answered` is to be given."""
        created: list[Any] = []
        for draft, place in zip(drafts, appended, strict=True):
            context = context_of(draft.properties)
            if context is not None:
                record = self._record(context, draft, place)
                self._tell(record, began_ns)
                span = self._created.pop(context.span_id, None)
                if span is not None:
                    span.set_attribute(Attribute.MESSAGE_ID, record.message_id)
                    created.append(span)
        return created

    @staticmethod
    def _record(context: TraceContext, draft: RecordDraft, place: Appended) -> TracedRecord:
        return TracedRecord(
            context=context,
            offset=place.physical_offset,
            size=place.size,
            topic=draft.topic,
            queue_id=draft.queue_id,
            queue_offset=place.queue_offset,
            message_id=draft.keys[0],
        )

    def _tell(self, record: TracedRecord, began_ns: int) -> None:
        now_ns = time.time_ns()
        self._tracer.stage(APPEND, record, began_ns, now_ns, self._identity)
        if len(self._unflushed) < UNFLUSHED_MAX:
            self._unflushed.append((record, now_ns))

    def answered(self, created: Sequence[Any], error: Exception | None = None) -> None:
        """End the creation spans of a request that is answered."""
        for span in created:
            if error is not None:
                span.set_attribute(Attribute.ERROR, getattr(error, "reason", type(error).__name__))
                span.set_status(self._tracer.error_status(str(error)))
            span.end()

    @property
    def waits(self) -> bool:
        """Whether a flush is waited for; safe from any thread."""
        return bool(self._unflushed)

    def flushed(self) -> None:
        """Record the flushes that are done."""
        end, now_ns = self._flushed(), time.time_ns()
        while self._unflushed and self._unflushed[0][0].end <= end:
            record, began_ns = self._unflushed.popleft()
            self._tracer.stage(FLUSH, record, began_ns, now_ns, self._identity)


class DispatchTraces:
    """Stands before a slave's store and traces the records that get their queue entries."""

    def __init__(self, tracer: Tracer, store: MessageStore, *, name: str, broker_id: int) -> None:
        """Begin with what is dispatched from now on."""
        self._tracer = tracer
        self._store = store
        self._scanner = ContextScanner(store.read_log, store.dispatched, store.file_size)
        self._identity = identity(name, broker_id)

    def dispatch_ready(self, budget_bytes: int) -> bool:
        """Have the store dispatch a part of what has arrived; return whether more is there."""
        began_ns = time.time_ns()
        more = self._store.dispatch_ready(budget_bytes)
        if self._store.dispatched != self._scanner.position:
            now_ns = time.time_ns()
            for record in self._scanner.advance(self._store.dispatched):
                self._tracer.stage(DISPATCH, record, began_ns, now_ns, self._identity)
        return more

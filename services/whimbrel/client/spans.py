"""Spans of the client library, for programs that trace.

    send {topic}      PRODUCER  child of the current span; its context travels with the message
    create {topic}    PRODUCER  of a batch, one for each message; then `send` is CLIENT and links to them
    receive {topic}   CLIENT    a trace of its own, links to the creation of each message
    process {topic}   CONSUMER  the same, for one message; current while the handler runs
    ack {topic}       CLIENT    the same, for the messages of one call (or `change_invisible {topic}`)

A message that has a context already keeps it, and its `send` is a CLIENT span that links to that. Receives
without messages have no span.

Programs trace when they have set up a tracer provider of OpenTelemetry, or give one in the options. A program
that has not imported OpenTelemetry has none: nothing is imported here, and a send costs one look-up.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import whimbrel
from whimbrel.client.options import ClientOptions
from whimbrel.model.message import Message, ReceivedMessage
from whimbrel.model.trace import FALLBACK_PROPERTY, TraceContext, parse_context
from whimbrel.telemetry import ACK, CREATE, PROCESS, RECEIVE, SEND, Attribute

__all__ = ["ClientSpans"]

CHANGE_INVISIBLE = "change_invisible"
SETTLE = "settle"  # the conventions' operation type for acknowledging and hiding


class ClientSpans:
    """The spans of one client."""

    def __init__(self, options: ClientOptions, *, group: str = "") -> None:
        """Prepare; `group` is a consumer's."""
        self.provider = options.tracer_provider
        self.namespace = options.namespace
        self.group = group
        self.api: Any = None  # the module opentelemetry.trace
        self.tracer: Any = None

    def enabled(self) -> bool:
        """Return whether the program may trace."""
        if self.tracer is None:
            self.api = sys.modules.get("opentelemetry.trace")
            if self.api is None:
                return False
            self.tracer = self.api.get_tracer("whimbrel", whimbrel.__version__, self.provider)
        return True

    @contextlib.contextmanager
    def sending(self, batch: Sequence[Message]) -> Iterator[Sequence[Message]]:
        """Yield the messages with their contexts, inside the span of their sending."""
        if not self.enabled():
            yield batch
            return
        alone = batch[0] if len(batch) == 1 else None
        if alone is not None and not context_text(alone):
            span = self.start(SEND, SEND, alone.topic, "PRODUCER", message_attributes(alone), root=False)
            batch = [carrying(alone, span)]
        else:
            batch = [message if context_text(message) else self.created(message) for message in batch]
            attributes: dict[str, Any] = (
                message_attributes(alone) if alone is not None else {Attribute.BATCH_COUNT: len(batch)}
            )
            links = self.links(context_text(message) for message in batch)
            span = self.start(SEND, SEND, batch[0].topic, "CLIENT", attributes, links=links, root=False)
        with self.ending(span):
            yield batch

    def created(self, message: Message) -> Message:
        span = self.start(CREATE, CREATE, message.topic, "PRODUCER", message_attributes(message), root=False)
        span.end()
        return carrying(message, span)

    def received(self, topic: str, messages: Sequence[ReceivedMessage], began_ns: int) -> None:
        """Record a receive that brought messages; `began_ns` is its begin, ns since the epoch."""
        if not messages or not self.enabled():
            return
        links = self.links(received_context(message) for message in messages)
        attributes = self.consumed(messages)
        self.start(RECEIVE, RECEIVE, topic, "CLIENT", attributes, links=links, began_ns=began_ns).end()

    @contextlib.contextmanager
    def processing(self, message: ReceivedMessage) -> Iterator[None]:
        """Run a handler inside a span that is the current one."""
        if not self.enabled():
            yield
            return
        links = self.links([received_context(message)])
        span = self.start(PROCESS, PROCESS, message.topic, "CONSUMER", self.consumed([message]), links=links)
        with self.api.use_span(span, record_exception=False, set_status_on_exception=False):
            with self.ending(span):
                yield

    @contextlib.contextmanager
    def settling(self, messages: Sequence[ReceivedMessage], *, acknowledge: bool = True) -> Iterator[None]:
        """Run the call that settles messages of one topic inside a span."""
        if not self.enabled():
            yield
            return
        links = self.links(received_context(message) for message in messages)
        name = ACK if acknowledge else CHANGE_INVISIBLE
        attributes = self.consumed(messages)
        with self.ending(self.start(name, SETTLE, messages[0].topic, "CLIENT", attributes, links=links)):
            yield

    def consumed(self, messages: Sequence[ReceivedMessage]) -> dict[str, Any]:
        attributes: dict[str, Any] = {Attribute.GROUP: self.group}
        if len(messages) > 1:
            return attributes | {Attribute.BATCH_COUNT: len(messages)}
        message = messages[0]
        attributes[Attribute.MESSAGE_ID] = message.message_id
        attributes[Attribute.QUEUE] = str(message.queue_id)
        attributes[Attribute.BROKER] = message.queue.broker_name
        return attributes

    def links(self, contexts: Any) -> list[Any]:
        parsed = (parse_context(text) for text in contexts if text)
        return [self.link(context) for context in parsed if context is not None]

    def link(self, context: TraceContext) -> Any:
        api = self.api
        flags = api.TraceFlags(int(context.sampled))
        return api.Link(api.SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=flags))

    def start(
        self,
        operation: str,
        kind_of_operation: str,
        topic: str,
        kind: str,
        attributes: dict[str, Any],
        *,
        links: Sequence[Any] = (),
        began_ns: int | None = None,
        root: bool = True,
    ) -> Any:
        api = self.api
        attributes |= {
            Attribute.SYSTEM: "rocketmq",
            Attribute.OPERATION: operation,
            Attribute.OPERATION_TYPE: kind_of_operation,
            Attribute.TOPIC: topic,
        }
        if self.namespace:
            attributes[Attribute.NAMESPACE] = self.namespace
        return self.tracer.start_span(
            f"{operation} {topic}",
            # A context without a span makes a new trace; None continues the current one.
            api.set_span_in_context(api.INVALID_SPAN) if root else None,
            kind=getattr(api.SpanKind, kind),
            attributes=attributes,
            links=links,
            start_time=began_ns or time.time_ns(),
        )

    @contextlib.contextmanager
    def ending(self, span: Any) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            span.set_attribute(Attribute.ERROR, getattr(error, "reason", type(error).__name__))
            span.set_status(self.api.Status(self.api.StatusCode.ERROR, str(error)))
            raise
        finally:
            span.end()


def context_text(message: Message) -> str:
    """Return the context that a message to be sent carries already, "" for none."""
    return message.trace_context or message.properties.get(FALLBACK_PROPERTY, "")


def received_context(message: ReceivedMessage) -> str:
    """Return the context that a message came with, "" for none."""
    return message.trace_context or message.properties.get(FALLBACK_PROPERTY, "")


def carrying(message: Message, span: Any) -> Message:
    """Return the message with the context of a span; unchanged without a provider."""
    found = span.get_span_context()
    if not found.is_valid:
        return message
    context = TraceContext(found.trace_id, found.span_id, found.trace_flags.sampled)
    return dataclasses.replace(message, trace_context=str(context))


def message_attributes(message: Message) -> dict[str, Any]:
    """Return the attributes of a message that is sent; body and properties are left out."""
    attributes: dict[str, Any] = {
        Attribute.MESSAGE_ID: message.message_id,
        Attribute.BODY_SIZE: len(message.body),
    }
    if message.tag:
        attributes[Attribute.TAG] = message.tag
    if message.keys:
        attributes[Attribute.KEYS] = list(message.keys)
    return attributes

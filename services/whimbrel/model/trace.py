"""The trace context that a message carries: W3C `traceparent` text.

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version, trace id (32 hex digits), span id (16), flags (2); bit 0 of the flags: sampled

A later version may have more fields behind these, which are then ignored. Source: W3C Trace Context, level 1,
section 3.2.
"""

import re
from dataclasses import dataclass

__all__ = ["CONTEXT_PROPERTY", "FALLBACK_PROPERTY", "TraceContext", "TracedRecord", "parse_context"]

# The stored property: RocketMQ 5.3.3 writes `SystemProperties.trace_context` there.
CONTEXT_PROPERTY = "TRACE_CONTEXT"
# A user property that counts where the other is missing: instrumented programs set it themselves.
FALLBACK_PROPERTY = "traceparent"

TEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The span in which a message was created."""

    trace_id: int
    span_id: int
    sampled: bool

    def __str__(self) -> str:
        """Return the text form of messages."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRecord:
    """The facts on a record that spans carry."""

    context: TraceContext
    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str

    @property
    def end(self) -> int:
        """Where the next record begins."""
        return self.offset + self.size


def parse_context(text: str) -> TraceContext | None:
    """Return the context that a text holds, None when it is none."""
    found = TEXT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & SAMPLED))
    return context if context.trace_id and context.span_id else None

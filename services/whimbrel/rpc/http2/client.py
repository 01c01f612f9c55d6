"""A client's connection that recognises the two header blocks of nearly all responses of our servers.

    HEADERS  :status 200, content-type application/grpc   ──► ResponseBegun    no entry of a table is in them,
    HEADERS  grpc-status 0, and END_STREAM                ──► ResponseEnded    so they always mean the same

Their fields need not be decoded and checked, which is a third of the cost of a unary call.
"""

from whimbrel.rpc.http2.connection import Connection
from whimbrel.rpc.http2.frames import END_STREAM
from whimbrel.rpc.http2.grpc_format import OK_TRAILERS, RESPONSE_HEADERS
from whimbrel.rpc.http2.stream import Event, ResponseBegun, ResponseEnded

__all__ = ["ClientConnection"]


class ClientConnection(Connection):
    """A connection that opens streams; see the module."""

    def whole_block(self, flags: int, stream_id: int, block: bytes, events: list[Event]) -> None:
        """Take a header block."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.remote_closed:
            if (
                block == OK_TRAILERS
                and stream.headers_received
                and flags & END_STREAM
                and stream.declared < 0
            ):
                stream.remote_closed = True
                events.append(ResponseEnded(stream))
                if stream.local_closed:
                    self.forget_read(stream)
                return
            if block == RESPONSE_HEADERS and not stream.headers_received and not flags & END_STREAM:
                stream.headers_received = True
                events.append(ResponseBegun(stream))
                return
        super().whole_block(flags, stream_id, block, events)

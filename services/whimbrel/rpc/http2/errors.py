"""Faults of a peer, and HTTP/2's codes for them."""

from enum import IntEnum

__all__ = ["Code", "ProtocolError", "StreamError"]


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ProtocolError(Exception):
    """A fault that ends the connection."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamError(Exception):
    """A fault that ends one stream."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code

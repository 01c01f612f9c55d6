"""What is wrong with bytes that are to be frames of the remoting protocol; each ends the connection.

Nothing can be answered then: where a frame ends, or which request it is, is not known. RocketMQ 4.9.3 closes
such connections as well, or, of some, waits for ever; recorded in the table of `tests/unit/rpc/remoting`.
"""

__all__ = [
    "FieldsError",
    "FrameLengthError",
    "HeaderError",
    "HeaderLengthError",
    "RemotingError",
    "SerializationError",
]


class RemotingError(Exception):
    """The bytes are no frame."""


class FrameLengthError(RemotingError):
    """A frame is longer than `FRAME_BYTES_MAX`, or too short for its header word."""


class SerializationError(RemotingError):
    """The header is written in a way that nobody knows: neither JSON nor ROCKETMQ."""


class HeaderLengthError(RemotingError):
    """A header is longer than its frame, or than `HEADER_BYTES_MAX`."""


class HeaderError(RemotingError):
    """A header can't be read, or says nothing that could be answered."""


class FieldsError(HeaderError):
    """The fields of a header are no texts by name, or too many."""

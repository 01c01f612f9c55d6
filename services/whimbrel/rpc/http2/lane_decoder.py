"""The compiled decoder of header blocks, in the place of `hpack.HeaderDecoder`. Pure.

The compiled decoder keeps the table of its connection, and nobody else does: passes over the bytes of a read
(`rpc/server/lane_calls.py`) decode with it, and so does Python, through `decode`. A block that it does not
take is decoded by Python's decoder, which goes on from its table and says what is wrong, if anything is.

It decodes all values at once, which costs less than to keep them coded. What a call's fields mean is known
for those that came before with the same values, but for the fields of `VARYING` (`Known`, as `hpack.Shape`).
"""

from collections.abc import Callable
from typing import Any, Final

from whimbrel.rpc.http2.hpack import ENTRY_BYTES, SHAPES_MAX, Field, HeaderDecoder, Shape

__all__ = ["VARYING", "Known", "LaneHeaderDecoder"]

# Fields whose values differ from call to call, and that say nothing about what a call is.
VARYING: Final = frozenset(
    (b"x-mq-request-id", b"x-mq-date-time", b"authorization", b"traceparent", b"grpc-trace-bin")
)

# Runs a call of the lane; None where it has panicked.
Run = Callable[..., Any]


class Known:
    """What is known of blocks whose fields differ in values of `varying` alone; attributes as of `Shape`."""

    __slots__ = ("checked", "memo", "varying")

    def __init__(self, *, valid: bool) -> None:
        self.checked: bool | None = False if valid else None
        self.memo: Any = None
        self.varying = VARYING


class LaneHeaderDecoder:
    """Decodes the blocks of one direction of a connection, in their order.

    Attributes:
        native: the compiled decoder; None once Python goes on.
        shape: of the last block; None when it has none.
    """

    __slots__ = ("known", "list_bytes_max", "native", "python", "run", "shape")

    def __init__(self, native: Any, run: Run, before: HeaderDecoder) -> None:
        """Take a new compiled decoder, what runs its calls, and the decoder from whose table it goes on."""
        self.native, self.run, self.list_bytes_max = native, run, before.list_bytes_max
        native.restore(before.capacity, [(name, value) for name, value, _ in before.table])
        self.python: HeaderDecoder | None = None
        self.shape: Shape | Known | None = None
        self.known: dict[bytes, Known] = {}

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block.

        Raises:
            HpackError: it can't be decoded.
            ListTooLarge: its fields have too many bytes.
            RuntimeError: the lane has panicked; the connection can't go on.
        """
        if self.python is None:
            found = self.run(self.native.decode, block)
            if found is not None:
                fields, key, valid = found
                known = self.known.get(key)
                if known is None:
                    if len(self.known) >= SHAPES_MAX:
                        self.known.clear()
                    known = self.known[key] = Known(valid=valid)
                self.shape = known
                return fields  # type: ignore[no-any-return]
        python = self.leave()
        fields = python.decode(block)
        self.shape = python.shape
        return fields

    def leave(self) -> HeaderDecoder:
        """Return Python's decoder, which goes on from the table as it is."""
        if self.python is None:
            python = self.python = HeaderDecoder(list_bytes_max=self.list_bytes_max)
            python.capacity, python.table = self.native.table()
            python.size = sum(len(name) + len(value) + ENTRY_BYTES for name, value, _ in python.table)
            self.native = None
            self.known.clear()
        return self.python

"""whimbrel's plain case, compiled. Only `whimbrel.lane` imports this."""

from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

VERSION: str
SOURCES: str  # CRC-32 of the sources that it was built from, in hexadecimal digits

class Broken(RuntimeError):
    """A panic was caught: nothing was published, and the module should not be used any more."""

class Keys:
    """Hashed keys of records, in the order of the log."""

    @property
    def first_offset(self) -> int:
        """Physical offset of the first key's record; -1 without any."""

    def __len__(self) -> int: ...

class HeaderDecoder:
    """The table of header fields of one direction of a connection (RFC 7541)."""

    def __init__(self, list_bytes_max: int, varying: list[bytes]) -> None:
        """Begin with an empty table; `varying` are names whose values are left out of a block's key."""

    def decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes, bool]], bytes, bool] | None:
        """Return a block's fields (the flag is False), its key, and whether a request may have such fields.

        None: it can't be decoded, and the table is as before.
        """

    def table(self) -> tuple[int, list[tuple[bytes, bytes, bool]]]:
        """Return the capacity in bytes, and the entries, the oldest first."""

    def restore(self, capacity: int, entries: list[tuple[bytes, bytes]]) -> None:
        """Go on from another decoder's table."""

    def undo(self) -> None:
        """Put the table back to where it was before the last pass."""

class Answers:
    """Answers to calls of one connection that wait, in the order of the log."""

    frames: bytes  # of all, as they are sent
    ids: list[int]  # of the streams
    codes: list[tuple[int, int]]  # of requests of the remoting protocol, and how many have each
    data_bytes: int  # as windows count them
    largest: int
    shortest_timeout: float | None  # seconds

    def __len__(self) -> int: ...
    def calls(self) -> list[tuple[int, bytes, int, int, float | None]]:
        """Return stream, message, end of its records in the log, window added by the peer, and timeout."""

class ParkedAnswers:
    """Answers that wait until the log is durable, in its order; or for numbers that rise likewise."""

    oldest_end: int  # -1 without any
    newest_end: int
    oldest_at: float  # infinity without any
    next_deadline: float

    def __len__(self) -> int: ...
    def add(
        self, connection: object, parked_at: float, deadline: float, answers: Answers, end: int | None = None
    ) -> None:
        """Add answers behind all others; all of them wait for `end` where it is given."""

    def settle(self, durable: int) -> list[tuple[Any, float, Answers]]:
        """Take those whose records end up to an offset: connection, when they were parked, answers."""

    def take_of(self, connection: object) -> list[tuple[Any, float, Answers]]:
        """Take all of a connection."""

    def take_expired(self, now: float) -> list[tuple[Any, float, Answers]]:
        """Take those with a deadline up to `now`, and those that were parked together with them."""

    def take_parked_before(self, at: float) -> list[tuple[Any, float, Answers]]:
        """Take those that were parked before a time."""

class Feeding:
    """The master's end of replication in its steady state (`replica.rs` in `native/core`); times are ns.

    `next` says what to do: ("send", link, offset, size), ("wait", until), ("leave",). `feed` does it with system
    calls; another caller says how it went by the other methods.
    """

    moved: bool  # acknowledgements have moved, and the broker was not rung
    timed_out: bool  # since its time was up
    written: int  # where the log ended when it was last looked at

    def __init__(
        self,
        marks: tuple[int, int, int, int],
        frame_max: int,
        file: tuple[int, int],
        limits: tuple[int, int, int],
        notes: bool,
    ) -> None:
        """Begin.

        Args:
            marks: epoch, begin, written, replaced.
            frame_max: bytes of the log in one frame.
            file: where the log's file begins and ends.
            limits: how long without a heartbeat, without a report, and when the run ends.
            notes: whether to keep what metrics need.
        """

    def add(
        self,
        slot: int,
        next_offset: int,
        acknowledged: int,
        sent_bytes: int,
        sent_ns: int,
        received_ns: int,
        partial: bytes,
    ) -> None:
        """Add a connection."""

    def links(
        self,
    ) -> list[tuple[int, int, int, int, int, bytes, bytes, tuple[int, int, int] | None]]:
        """Return the connections as they are: as `add`, then reports that are Python's, and the frame of which
        a part was sent: offset, size, bytes sent."""

    def notes(self) -> list[tuple[bool, int, int]]:
        """Return whether a slave has acknowledged, or the log was written; up to where; when."""

    def next(self, marks: tuple[int, int, int, int], now_ns: int) -> tuple[Any, ...]: ...
    def sent(self, link: int, size: int, count: int, now_ns: int) -> None: ...
    def waited(self, plain: bool) -> None: ...
    def received(self, link: int, data: bytes, written: int, now_ns: int) -> bool: ...
    def rang(self, done: bool) -> None: ...

class Following:
    """The slave's end; see `Feeding`.

    `next` says ("append", place in the buffer, size, offset), ("publish", end), ("report", offset), ("ring",),
    ("wait", until) or ("leave",).
    """

    end: int
    reported: tuple[int, int]
    received_ns: int
    rung: tuple[bool, int]
    buffer: tuple[int, int]
    unsent: bytes
    timed_out: bool

    def __init__(
        self,
        log: tuple[int, int, int],
        reported: tuple[int, int],
        received_ns: int,
        rung: tuple[bool, int, int],
        buffer: tuple[int, int],
        limits: tuple[int, int, int],
    ) -> None:
        """Begin.

        Args:
            log: its end, that of its file, and from where on Python is wanted.
            reported: which end, and when.
            received_ns: when something came last.
            rung: whether the broker is to be rung, when it was, how far apart.
            buffer: bytes in it, and how many of them are parsed.
            limits: as of `Feeding`.
        """

    def next(self, buffer: bytearray | memoryview, now_ns: int) -> tuple[Any, ...]: ...
    def appended(self, size: int, done: bool) -> None: ...
    def sent_report(self, count: int, now_ns: int) -> None: ...
    def rang(self, done: bool, now_ns: int) -> None: ...
    def waited(self, plain: bool) -> None: ...
    def make_room(self, buffer: bytearray | memoryview) -> int: ...
    def received(self, count: int, now_ns: int) -> None: ...

def feed(
    feeding: Feeding,
    page: object,
    places: dict[str, int],
    descriptors: dict[str, int],
    file_start: int,
    sockets: list[int],
) -> None:
    """Feed slaves until the run ends, without the interpreter's lock."""

def follow(
    following: Following,
    page: object,
    places: dict[str, int],
    descriptors: dict[str, int],
    socket: int,
    buffer: object,
    mapped: object,
    base: int,
) -> None:
    """Follow a master until the run ends, without the interpreter's lock; nobody else may use `buffer`."""

class PlainCalls:
    """Plain sends and acknowledgements; the arguments are the fields of `Methods` in `native/core`."""

    def __init__(self, **values: object) -> None: ...
    def take(
        self,
        reads: list[Read],
        log: tuple[int, int, int, int, int | None, int] | None,
        topics: object,
        leases: tuple[object, int | None],
        taken: list[Taken],
    ) -> tuple[Stored | None, list[Settled] | None]:
        """Plan the plain calls of one kind at the begin of each read; nothing is written.

        Args:
            reads: of different connections.
            log: end, room in bytes, store time and born time in ms, calls that may be parked (None: none is),
                messages before one that is sampled. None: sends are Python's.
            topics: is asked for `find(topic)` (queues that may be named, those that take turns, the last turn, the
                queues by their numbers; None: not plain), and for `queue(topic, queue_id)` where `find` does not have it.
            leases: what is asked for `holds(group, topic, queue_id, epoch, offset, serial)`; acknowledgements that
                may be parked, None: none is, they are answered at once.
            taken: what becomes of each read is added.

        Returns:
            What follows from sends; what follows from acknowledgements.
        """

class RemoteSends:
    """Plain sends of the remoting protocol; the arguments are the fields of `Policy` in `remote.rs`."""

    def __init__(self, **values: object) -> None: ...
    def take(
        self,
        reads: list[tuple[bytes, bytes]],
        log: tuple[int, int, int, int, int | None, int],
        topics: object,
        taken: list[TakenFrames],
    ) -> Stored | None:
        """Plan the plain sends at the begin of each read; nothing is written.

        Args:
            reads: of different connections: bytes, from a frame's begin on, and the peer's address as records
                hold it.
            log, topics: as of `PlainCalls.take`.
            taken: what becomes of each read is added.

        Returns:
            What follows from them; None without any.
        """

def decoded(
    frame: bytes, limits: tuple[int, int]
) -> tuple[int, int, dict[str, str] | None, bytes, int, str, int, str | None] | None:
    """Return the command of a whole frame of the remoting protocol; None: it is not plain.

    Args:
        limits: the longest frame and header.

    Returns:
        Code, opaque number, fields, body, flag, language, version, remark.
    """

def pull_of(
    frame: bytes, limits: tuple[int, int], bounds: tuple[int, int, int]
) -> tuple[int, int, int, int, str, tuple[str, str, int, int, int, int, int, int, str, bool, int, int]] | None:
    """Return what a whole frame pulls; None: it is no pull without a body, or not plain.

    Args:
        limits: as of `decoded`.
        bounds: the most bytes of a pull, milliseconds that it may wait, bytes of a subscription.

    Returns:
        Code, opaque number, flag, version, language, and the fields of `PullHeader`.
    """

# Of a read: bytes that were taken, whether what is left is the begin of a frame, how many bytes of it are needed
# or where Python's part ends (where it begins: the rest is for another pass), the codes of the requests with how
# many have each, answers: those that wait; or the frames of others; None without any.
TakenFrames = tuple[int, bool, int, list[tuple[int, int]], Answers | bytes | None]

# The connection's decoder; bytes, from a frame's begin on; last stream id, streams that may be opened, windows
# (sending, receiving, of a new stream for both), the largest frames (to send, to receive), header block,
# whether answers wait for windows; the client whose calls are taken; the peer's address as records hold it;
# headers that a guard looks at, and by method their values when it has let in a call.
Read = tuple[
    HeaderDecoder,
    bytes,
    tuple[int, int, int, int, int, int, int, int, int, bool],
    bytes,
    bytes,
    tuple[list[bytes], list[list[bytes | None] | None]] | None,
]
# Of a read: bytes that were taken, whether what is left is the begin of a call, how many bytes of it are
# needed or where Python's part ends (where it begins: the rest is for another pass), whether that may be about
# older streams, last stream id, window for sending, bytes of data, a client that Python has to meet, answers:
# those that wait; or the frames of others, the numbers of their streams, and answers beyond the windows as of
# `Answers.calls`.
Taken = tuple[
    int,
    bool,
    int,
    bool,
    int,
    int,
    int,
    bytes | None,
    tuple[None, None, Answers | None]
    | tuple[bytes, list[int], list[tuple[int, bytes, int, int, float | None]]],
]
# Records, runs (queue, entries, last tags code), keys, topics (name, turn, counts of sizes, bytes), messages.
Stored = tuple[bytes, list[tuple[Any, bytes, int]], Keys, list[tuple[str, int, list[int], int]], int]
# The number of a state, ranges of offsets that are done.
Settled = tuple[int, list[tuple[int, int]]]

class PlainRecord:
    """A plain record of the log."""

    reconsume_times: int

    def data(self) -> bytes:
        """Return its bytes."""

    def properties(self) -> dict[str, str]:
        """Return its properties."""

class Deliveries:
    """Messages for consumers; the arguments are the fields of `Words` in `native/core`."""

    def __init__(self, **values: object) -> None: ...
    def records(
        self, read: bytes, base: int, units: list[tuple[int, int, int]], found: list[PlainRecord | None]
    ) -> None:
        """Append the records of queue entries to `found`, None for one that is not plain or not in `read`.

        Args:
            read: a piece of the log.
            base: where it begins.
            units: place and size of each, and its tags code.
            found: gets one for each entry.
        """

    def responses(self, messages: list[tuple[PlainRecord, str, int]], namespace: str) -> bytes:
        """Return responses behind gRPC's prefix: for each record its message, with handle and attempt."""

    def pull(
        self,
        units: bytes,
        budget: tuple[int, int, int],
        tags: tuple[list[int], list[bytes]] | None,
        namespace: str,
        read: Callable[[int, int], bytes],
    ) -> tuple[int, int, int, int, bytes]:
        """Answer a pull as far as all that matches is plain.

        Args:
            units: entries of the queue, packed.
            budget: messages that fit, the size in bytes up to which the first one does, bytes of all records.
            tags: which are wanted: the low 32 bits of their codes, and the texts. None: all messages are.
            namespace: of the topic.
            read: is called with place and size of pieces of the log; returns less where there is less.

        Returns:
            How many entries are done, how many messages were taken, bytes of their records, where the last
            one stands (-1: none was taken), and responses behind gRPC's prefix.
        """

class BulkPlan:
    """The parts of the log that go into a frame of a bulk reader."""

    def __init__(
        self, file_size: int, gap_max: int, span_max: int, codes: frozenset[int] | None, room: int
    ) -> None:
        """Begin without an entry.

        Args:
            file_size: of the log's files.
            gap_max, span_max: bytes that are read along between two records, and at once.
            codes: hashes of wanted tags; None for all.
            room: bytes of records.
        """

    def take(self, packed: bytes) -> tuple[int, int]:
        """Take packed entries that follow those before; return how many are done, and the room that is left.

        It stops before an entry whose record has no room left, or that tells of no record.
        """

    def spans(self) -> list[tuple[int, int]]:
        """Return begin and end of each piece of the log that is to be read, in order."""

    def cut(self, reads: list[bytes]) -> bytes | None:
        """Return the records, in order; None where one is not as its entry says, or a read is too short.

        Args:
            reads: what was read for each of `spans`.
        """

class SendLoad:
    """The load of `whimbrel bench send`: SendMessage over connections that the caller has made.

    Nothing is sent before `run`, and everything within it. One thread uses it.
    """

    def __init__(
        self,
        words: tuple[bytes, bytes, bytes],
        ids: tuple[bytes, int, bytes, bytes],
        targets: list[tuple[int, list[tuple[bytes, bytes | None]], list[int]]],
        concurrency: int,
        batch: int,
        count: int | None,
    ) -> None:
        """Prepare it.

        Args:
            words: topic, body and born host of all messages.
            ids: how message ids begin, and the number (32 bits, 8 hex digits) that ends the first one; how
                request ids begin (at most 24 bytes), which 12 digits end; the name of the header with the date.
            targets: of each broker the descriptor of a connected socket, which the caller keeps open; the
                headers of calls in their order, where None is a value that differs in each call (date or
                request id); the queues, which messages name in turn.
            concurrency, batch: calls under way, and messages of each.
            count: messages in all; None for no bound.

        Raises:
            ValueError: one of them is 0, or there is no target.
        """

    def run(self, seconds: float) -> bool:
        """Go on for so long without the interpreter's lock; return whether there is more to do.

        Raises:
            ConnectionError: a connection, that of number `at`, can't go on; the text says why. What is
                measured until then is in the tally, and the load has ended.
            Broken: it has a fault.
        """

    def stop(self) -> None:
        """Begin no more calls: `run` goes on until those under way have ended."""

    @property
    def ready(self) -> bool:
        """Whether all servers have answered, so that it has begun."""

    @property
    def at(self) -> int:
        """The number of the connection that was used last."""

    @property
    def hopeless(self) -> bool:
        """Whether too many calls have failed in a row; it has stopped by itself then."""

    def tally(
        self,
    ) -> tuple[
        int,
        list[tuple[int, int]],
        int,
        list[tuple[str, int, int]],
        tuple[str, int, str] | None,
        int,
    ]:
        """Return what was measured so far.

        Returns:
            Messages that are stored; the counters of `cli/latencies.py` that are not 0 (number, count); the
            greatest latency in ns; messages that failed (kind, code, count), where the kind is "code" of a
            response, "status" of gRPC, "reset" of a stream, or "http"; kind, code and text of the last
            failure; and ns from the first call to the end of the last one that was stored.
        """

def plan_pull(
    packed: bytes,
    bounds: tuple[int, int, int],
    codes: frozenset[int] | None,
    room: int,
    most: tuple[int, int],
    log_begin: int,
) -> tuple[int, int, int, int | None, list[tuple[int, int]], BulkPlan] | None:
    """Plan a pull over packed entries; None: one of them tells of no record.

    Args:
        bounds: file_size, gap_max, span_max as of `BulkPlan`; codes, room: likewise; the first record may be
            larger than the room.
        most: records of the pull, and bytes of a record.
        log_begin: records below it are gone.

    Returns:
        Entries that are done, records, their bytes, where the last one stands, the plan's spans, the plan.
    """

def entries(data: bytes, base: int) -> tuple[int, bool, int, list[tuple[bytes, int, int, bytes]]]:
    """Make the queue entries of the plain records at the begin of a piece of the log.

    Args:
        data: of one file of the log.
        base: where it begins.

    Returns:
        How many bytes were plain records; whether what follows is not plain (or else not whole); the store
        time of the last one, ms since the epoch; and for each queue its topic as records hold it, its id, the
        number of the first entry, and the entries, packed.
    """

def keys(data: bytes, base: int) -> tuple[int, bool, Keys]:
    """Hash the keys of the plain records at the begin of a piece of the log; arguments as of `entries`.

    Returns:
        How many bytes were plain records, whether what follows is not plain, and their keys.
    """

def kept(data: bytes, base: int) -> tuple[int, int]:
    """Return how many bytes at the begin of a piece of the log recovery keeps, and where the last record stands
    (-1: there is none); it ends at the first record that is for Python to look at."""

def hashed(records: list[tuple[str, tuple[str, ...], int, int]]) -> Keys:
    """Hash the keys of records: topic, keys, physical offset, store time in ms.

    Raises:
        ValueError: a text can't be encoded (`UnicodeEncodeError`).
    """

def joined(several: list[Keys]) -> Keys:
    """Make one of several that follow each other."""

def put_keys(
    file: Buffer,
    slots: int,
    header: tuple[int, int, int, int, int, int],
    keys: Keys,
    first: int,
    count: int,
) -> tuple[int, int, int, int, int, int]:
    """Add some of the keys to a mapped index file and write its header; return that.

    Args:
        file: writable.
        slots: of the file.
        header: begin and end in ms, begin and end offset, slots used, number of the next entry.
        keys, first, count: which are added.

    Raises:
        BufferError: the file is not writable.
        ValueError: the file has no room for them, or there are not so many; nothing was written.
    """

def panic(text: str) -> None:
    """Panic, so that tests see what becomes of it.

    Raises:
        Broken: always.
    """

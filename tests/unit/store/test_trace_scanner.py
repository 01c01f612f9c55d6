"""Finding the records with a trace context in what a log has grown by."""

from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.model.trace import parse_context
from whimbrel.store.codec import RecordDraft, encode_record, pack_host
from whimbrel.store.trace_scanner import NEAR_BYTES, ContextScanner, context_of

FILE = 1 << 22
CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = CONTEXT[:-1] + "0"
HOST = pack_host("127.0.0.1", 1)


class Log:
    """Bytes that grow, read as a log file is."""

    def __init__(self, file_size: int = FILE) -> None:
        self.data = bytearray()
        self.file_size = file_size
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, size: int) -> bytes:
        self.reads.append((offset, size))
        left = self.file_size - offset % self.file_size
        return bytes(self.data[offset : offset + min(size, left)])

    def add(self, body: bytes = b"x", properties: str = "") -> tuple[int, int]:
        """Append a record; return where it begins and ends."""
        at = len(self.data)
        draft = RecordDraft(
            topic="orders",
            queue_id=1,
            body=body,
            properties=f"UNIQ_KEY\x01m{at}\x02{properties}".encode(),
            born_timestamp=0,
            born_host=HOST,
            store_host=HOST,
        )
        self.data += encode_record(draft, at, 7, 0)
        return at, len(self.data)

    def traced(self, body: bytes = b"x") -> tuple[int, int]:
        return self.add(body, f"TRACE_CONTEXT\x01{CONTEXT}\x02")


def found(scanner: ContextScanner, end: int) -> list[int]:
    return [record.offset for record in scanner.advance(end)]


def test_sampled_records_are_found_with_what_spans_tell_of_them() -> None:
    log = Log()
    log.add()
    begin, end = log.traced()
    log.add(properties=f"TRACE_CONTEXT\x01{UNSAMPLED}\x02")
    (record,) = ContextScanner(log.read, 0, FILE).advance(len(log.data))
    assert (record.offset, record.end, record.topic, record.queue_id, record.queue_offset) == (
        begin, end, "orders", 1, 7,
    )  # fmt: skip
    assert (record.message_id, str(record.context)) == (f"m{begin}", CONTEXT)


def test_the_user_property_counts_where_the_other_is_missing() -> None:
    assert context_of(f"traceparent\x01{CONTEXT}\x02".encode()) == parse_context(CONTEXT)
    # What the client sent as its context wins, even if that says: not sampled.
    both = f"traceparent\x01{CONTEXT}\x02TRACE_CONTEXT\x01{UNSAMPLED}\x02"
    assert context_of(both.encode()) is None
    assert context_of(b"TRACE_CONTEXT\x01spam\x02") is None


def test_a_body_that_looks_like_a_context_is_none() -> None:
    log = Log()
    log.add(body=f"TRACE_CONTEXT\x01{CONTEXT}\x02".encode())
    begin, _ = log.traced(body=f"\xda\xa3\x20\xa7 TRACE_CONTEXT\x01{CONTEXT}\x02".encode("latin-1"))
    assert found(ContextScanner(log.read, 0, FILE), len(log.data)) == [begin]


def test_a_log_that_is_being_caught_up_with_is_not_looked_through() -> None:
    log = Log()
    log.traced()
    for _ in range(NEAR_BYTES // 1024 + 1):
        log.add(bytes(1024))
    scanner = ContextScanner(log.read, 0, FILE)
    assert found(scanner, len(log.data)) == []
    assert log.reads == []
    begin, _ = log.traced()
    assert found(scanner, len(log.data)) == [begin]


def test_a_record_is_found_when_the_look_begins_within_it() -> None:
    log = Log()
    begin, end = log.traced(bytes(5000))
    assert found(ContextScanner(log.read, begin + 3000, FILE), end) == [begin]


def test_a_log_that_was_cut_is_gone_on_with_from_its_new_end() -> None:
    log = Log()
    _, end = log.traced()
    scanner = ContextScanner(log.read, end + 500, FILE)
    assert found(scanner, end) == []
    begin, end = log.traced()
    assert found(scanner, end) == [begin]


def test_files_are_gone_through_one_after_the_other() -> None:
    log = Log(file_size=1000)
    expected = []
    for _ in range(20):
        if len(log.data) % 1000 + 300 > 1000:  # a blank, as the log's writer makes it
            log.data += bytes(1000 - len(log.data) % 1000)
        expected.append(log.traced()[0])
    assert found(ContextScanner(log.read, 0, 1000), len(log.data)) == expected


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 3000), st.booleans()), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=30),
)
def test_every_sampled_record_is_found_once_however_the_log_grows(
    sizes: list[tuple[int, bool]], cuts: list[int]
) -> None:
    log = Log()
    expected = [
        log.traced(bytes(size))[0] if traced else log.add(bytes(size)) and None for size, traced in sizes
    ]
    whole = len(log.data)
    scanner = ContextScanner(log.read, 0, FILE)
    seen = [
        offset for cut in sorted({cut % whole for cut in cuts} | {whole}) for offset in found(scanner, cut)
    ]
    assert seen == [offset for offset in expected if offset is not None]

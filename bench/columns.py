"""Measure the decoder of columns beside plain `struct` loops over the same log, in CPU time of one process.

    python bench/columns.py [--mib 64] [--rounds 3]

Needs numpy and pyarrow. The loops are what one would write without them: fixed fields by `struct`, the rest
by slices; the first one leaves rows, the second one makes Arrow arrays of them. The decoder's figures include
reading the log in chunks (a copy of every byte, as `pread` makes) and finding the records. The best of some
rounds counts: the first ones pay for memory.
"""

import argparse
import random
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "services")]

import pyarrow as pa  # noqa: E402

from whimbrel.store.codec import (  # noqa: E402
    RecordDraft,
    encode_record,
    format_properties,
    pack_host,
    parse_properties,
    unpack_host,
)
from whimbrel.store.columns import COLUMNS, Decoder, Scan, schema_of  # noqa: E402

HEAD = struct.Struct(">iIiiiqqiq8sq8siqi")
HEADER_COLUMNS = ("topic", "queueId", "queueOffset", "storeTimestamp", "size")
ROWS_MAX = 10_000
FILE_SIZE = 1 << 30


def make_log(body_bytes: int, total: int) -> tuple[bytes, int]:
    """Return a log of messages with five properties, and how many there are."""
    body = random.Random(1).randbytes(body_bytes)
    hosts = [pack_host(f"10.0.0.{number}", 40_000 + number) for number in range(8)]
    log, count = bytearray(), 0
    while len(log) < total:
        properties = format_properties(
            [
                ("TAGS", "TagA" if count % 2 else "created"),
                ("KEYS", f"order-{count}"),
                ("UNIQ_KEY", f"{count:032X}"),
                ("CLUSTER", "DefaultCluster"),
                ("user", f"u{count % 100}"),
            ]
        )
        draft = RecordDraft(
            topic=("orders", "payments", "clicks")[count % 3],
            queue_id=count % 8,
            body=body,
            properties=properties,
            born_timestamp=1_700_000_000_000 + count,
            born_host=hosts[count % 8],
            store_host=hosts[0],
        )
        log += encode_record(draft, len(log), count // 24, 1_700_000_000_000 + count)
        count += 1
    return bytes(log), count


def all_rows(log: bytes, take: Callable[[list[Any]], object]) -> None:
    """Decode every column of every record by a plain loop."""
    at, rows = 0, []
    while at < len(log):
        (size, _, crc, queue_id, flag, queue_offset, place, sys_flag, born, born_host, stored, store_host,
         times, prepared, length) = HEAD.unpack_from(log, at)  # fmt: skip
        body_end = at + HEAD.size + length
        topic_end = body_end + 1 + log[body_end]
        pairs = parse_properties(log[topic_end + 2 : at + size])
        rows.append(
            (log[body_end + 1 : topic_end].decode(), "b", queue_id, queue_offset, place, size,
             pairs.get("UNIQ_KEY"), pairs.get("TAGS"), pairs.get("KEYS"), log[at + HEAD.size : body_end],
             born * 1000, stored * 1000, unpack_host(born_host), unpack_host(store_host), times, flag,
             sys_flag, prepared, pairs, crc)
        )  # fmt: skip
        at += size
        if len(rows) == ROWS_MAX:
            take(rows)
            rows = []
    take(rows)


def header_rows(log: bytes, take: Callable[[list[Any]], object]) -> None:
    """Decode five columns of every record by a plain loop."""
    at, rows = 0, []
    while at < len(log):
        head = HEAD.unpack_from(log, at)
        body_end = at + HEAD.size + head[14]
        topic = log[body_end + 1 : body_end + 1 + log[body_end]].decode()
        rows.append((topic, head[3], head[5], head[10] * 1000, head[0]))
        at += head[0]
        if len(rows) == ROWS_MAX:
            take(rows)
            rows = []
    take(rows)


def arrays_of(columns: Sequence[str]) -> Callable[[list[Any]], object]:
    """Give what makes Arrow arrays of rows."""
    schema = schema_of(columns)

    def make(rows: list[Any]) -> object:
        values: list[Sequence[Any]] = list(zip(*rows, strict=True))
        if "properties" in columns:
            number = list(columns).index("properties")
            values[number] = [list(pairs.items()) for pairs in values[number]]
        return [pa.array(value, field.type) for value, field in zip(values, schema, strict=True)]

    return make


def decode(log: bytes, columns: Sequence[str], *, verify_crc: bool = False) -> None:
    """Decode a log with the decoder of columns."""
    decoder = Decoder(columns, verify_crc=verify_crc)

    def read(offset: int, length: int) -> bytes:
        return log[offset : offset + length]

    for records in Scan(read, 0, len(log), limit=len(log), file_size=FILE_SIZE):
        for _ in decoder.batches(records):
            pass


def cpu_seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the CPU time of the best round."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| body | columns | way | records/CPU s | MB/CPU s | against the loop |\n|---|---|---|---|---|---|")
    for body_bytes in (100, 1024):
        log, count = make_log(body_bytes, options.mib << 20)
        for name, columns, loop in (("all", COLUMNS, all_rows), ("five", HEADER_COLUMNS, header_rows)):
            ways: dict[str, Callable[[], object]] = {
                "`struct` loop, rows": partial(loop, log, len),
                "`struct` loop, Arrow": partial(loop, log, arrays_of(columns)),
                "decoder": partial(decode, log, columns),
                "decoder with CRC": partial(decode, log, columns, verify_crc=True),
            }
            base = 0.0
            for way, work in ways.items():
                seconds = cpu_seconds(work, options.rounds)
                base = base or seconds
                print(
                    f"| {body_bytes} B | {name} | {way} | {count / seconds:,.0f} |"
                    f" {len(log) / seconds / 1e6:,.0f} | {base / seconds:.1f}x |"
                )


if __name__ == "__main__":
    main()

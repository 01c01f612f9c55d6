"""What the commands `whimbrel store …` show: a store of ours or of RocketMQ, read without changing anything
in it, also while a broker writes it.

Field names are those of RocketMQ's own dumps as in `tests/golden/README.md`: `record` and `blank` rows in log
order, and `queue` rows.
"""

import base64
import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from whimbrel.errors import CorruptRecord
from whimbrel.model.properties import UNIQ_KEY
from whimbrel.store.codec import StoredMessage, decode_record
from whimbrel.store.offline_recovery import recover
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.verify import Damage, verify
from whimbrel.store.view import LogView, consumequeue_file_size, open_index

__all__ = [
    "Damage",
    "dump_queues",
    "dump_records",
    "query_index",
    "record_row",
    "recover",
    "verify",
]

BODY_BYTES_SHOWN_MAX = 256
NO_LIMIT = 2**63 - 1

Row = dict[str, Any]


def dump_records(root: Path) -> Iterator[Row]:
    """Yield a row for every record and blank, in log order, and one of type `damage` for a damaged range."""
    view = LogView.of(root)
    walk = view.walk()
    while True:
        chunk = walk.next_chunk()
        while walk.blanks:
            offset, size = walk.blanks.pop(0)
            to_file_end = walk.file_size - offset % walk.file_size
            yield {"type": "blank", "phyOffset": offset, "size": size, "toFileEnd": to_file_end}
        if chunk is None:
            if walk.fault and walk.position < view.end:
                yield {"type": "damage", "phyOffset": walk.position, "what": walk.fault}
                if walk.skip_file():
                    continue
            return
        base, data, positions = chunk
        for at in positions:
            try:
                message = decode_record(data, at, check_crc=False)
            except CorruptRecord as error:
                yield {"type": "damage", "phyOffset": base + at, "what": str(error)}
                continue
            yield record_row(message, data[at : at + message.size])


def record_row(message: StoredMessage, record: bytes) -> Row:
    """Return a record as a row."""
    row: Row = {
        "type": "record",
        "phyOffset": message.physical_offset,
        "size": message.size,
        "magic": message.magic - (1 << 32),
        "bodyCRC": message.body_crc,
        "queueId": message.queue_id,
        "flag": message.flag,
        "queueOffset": message.queue_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeTimestamp": message.store_timestamp,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_offset,
        "bodyLength": len(message.body),
    }
    if len(message.body) <= BODY_BYTES_SHOWN_MAX:
        row["body"] = base64.b64encode(message.body).decode()
    else:
        row["bodySha256"] = hashlib.sha256(message.body).hexdigest()
    row["topic"] = message.topic
    row["propertiesRaw"] = base64.b64encode(message.properties_raw).decode()
    row["properties"] = message.properties
    row["offsetMsgId"] = message.offset_message_id
    row["uniqKey"] = message.properties.get(UNIQ_KEY)
    row["recordSha256"] = hashlib.sha256(record).hexdigest()
    return row


def dump_queues(root: Path) -> Iterator[Row]:
    """Yield a row for every queue with its entries, as in its files."""
    begin = LogView.of(root).begin
    queues = ConsumeQueues.load(root, consumequeue_file_size(root))
    for queue in sorted(queues, key=lambda queue: (queue.topic, queue.queue_id)):
        queue.max = queue.search(NO_LIMIT)
        queue.correct_min(begin)
        units = queue.units(queue.min, queue.max - queue.min)
        last = queue.units(queue.max - 1, 1)
        yield {
            "type": "queue",
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "min": queue.min,
            "max": queue.max,
            "maxPhysicOffset": last[0][0] + last[0][1] if last else 0,
            "units": [[queue.min + number, *unit] for number, unit in enumerate(units)],
        }


def query_index(
    root: Path,
    topic: str,
    key: str,
    *,
    limit: int = 64,
    begin: int = 0,
    end: int = NO_LIMIT,
    index_slots: int = 0,
) -> list[int]:
    """Return the physical offsets that the index has under a key's hash, newest first, as RocketMQ does.

    Records with other keys of the same hash are among them.
    """
    index = open_index(root, index_slots)
    try:
        return list(islice(index.find(topic, key, begin_ms=begin, end_ms=end), limit))
    finally:
        index.close()

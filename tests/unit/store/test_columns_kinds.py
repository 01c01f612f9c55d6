"""The column `type`, on records of every kind; `test_columns_scan.py` has all that RocketMQ recorded."""

import pytest

pytest.importorskip("pyarrow")

from support.store.column_records import SYSTEM, kind_of, record, table_rows
from whimbrel.store.columns import Decoder, frame

PROPERTIES = (
    "",
    "TRAN_MSG",
    "DELAY",
    "TIMER_DELIVER_MS",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "__SHARDINGKEY",
    "_SYS_MSG_PRIORITY_",
)
TOPICS = ("t", *SYSTEM, "%RETRY%g", "%DLQ%g", "rmq_sys_REVIVE_LOG_C")


def test_topic_and_properties_say_what_a_record_is() -> None:
    data, wanted = b"", []
    for topic in TOPICS:
        for first in PROPERTIES:
            for second in PROPERTIES:
                names = dict.fromkeys(name for name in (first, second) if name)
                text = b"".join(f"{name}\x01true\x02".encode() for name in names)
                data += record(len(data), topic=topic.encode(), properties=text)
                wanted.append(kind_of(topic, dict.fromkeys(names, "true")))
    rows = table_rows(Decoder(["type"]).batches(frame(data)))
    assert [row["type"] for row in rows] == wanted
    assert len(set(wanted)) == 13

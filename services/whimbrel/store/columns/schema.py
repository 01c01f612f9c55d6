"""The columns of a message table: names, Arrow types, and contents.

All are nullable in the schema, as Spark's fields are by default. Null values are only in the columns with a
star, where a record has no such field.

    topic                      string         of the record: SCHEDULE_TOPIC_XXXX for a delayed one, and so on
    brokerName                 string         given by the caller; records do not hold it
    queueId                    int32
    queueOffset                int64
    physicalOffset             int64          the record's own
    size                       int32          of the whole record
    msgId                      string         UNIQ_KEY, else the offset message id, as RocketMQ's clients do
    tags, keys *               string         the properties TAGS and KEYS; keys are separated by spaces
    body                       binary         decompressed, or as stored (`raw_bodies`); empty, never null
    bornTimestamp *            timestamp[us]  null when beyond the range of microseconds (292 000 years)
    storeTimestamp *           timestamp[us]
    bornHost, storeHost        string         ip:port, [ip]:port with all eight groups for IPv6
    reconsumeTimes             int32
    flag, sysFlag              int32          as stored, also when the body was decompressed
    preparedTransactionOffset  int64
    properties                 map            parsed; or the text as stored, as binary (`raw_properties`)
    bodyCrc                    int32          as stored: of the stored body, without the top bit
    crcOk                      bool           whether the body matches it; only when asked for
    bodyOk                     bool           crcOk, and the body decompresses, unless it is wanted as stored;
                                              only when asked for
    propertiesText             binary         the property text as stored; only when asked for
    type                       string         what kind of message it is (`kinds.py`); only when asked for

Columns with the names of Spark's Kafka source, for jobs that were written for that:

    key *                      binary         KEYS
    value                      binary         body
    partition                  int32          queueId
    offset                     int64          queueOffset
    timestamp *                timestamp[us]  storeTimestamp, by which offsets are searched; hence
    timestampType              int32          1: LogAppendTime
    headers *                  list<struct<key: string, value: binary>>  the properties
"""

from collections.abc import Sequence

import pyarrow as pa

__all__ = ["ALL_COLUMNS", "COLUMNS", "KAFKA_COLUMNS", "LOG_APPEND_TIME", "PROPERTIES", "schema_of"]

TIMESTAMP = pa.timestamp("us", tz="UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
LOG_APPEND_TIME = 1

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "size": pa.int32(),
    "msgId": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "body": pa.binary(),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "properties": PROPERTIES,
    "bodyCrc": pa.int32(),
    "crcOk": pa.bool_(),
    "bodyOk": pa.bool_(),
    "propertiesText": pa.binary(),
    "type": pa.string(),
    "key": pa.binary(),
    "value": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}

ALL_COLUMNS = tuple(TYPES)
COLUMNS = ALL_COLUMNS[: ALL_COLUMNS.index("crcOk")]  # what a table has unless other columns are asked for
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def schema_of(columns: Sequence[str], *, raw_properties: bool = False) -> pa.Schema:
    """Return the schema of batches with these columns, in this order.

    Raises:
        ValueError: no column, one that there is not, or one twice.
    """
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        raise ValueError(f"no column {', '.join(unknown)}; there are {', '.join(ALL_COLUMNS)}")
    if not columns or len(set(columns)) != len(columns):
        raise ValueError(f"columns are asked for once each, and at least one: {', '.join(columns)}")
    types = TYPES | {"properties": pa.binary()} if raw_properties else TYPES
    return pa.schema([pa.field(name, types[name]) for name in columns])

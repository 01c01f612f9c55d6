"""Records by where they stand (33), and by key or tag (12): as they are in the log.

An offset message id names a broker and a physical offset; clients dial that broker and send the offset.

RocketMQ: QueryMessageProcessor.
"""

from typing import Final

from whimbrel.broker.engine.records import RecordLog, read_at
from whimbrel.model.names import check_topic
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Peer, Reply
from whimbrel.store.codec import tag_key

__all__ = ["Records"]

FOUND_MAX = 64  # messages in a reply (RocketMQ: defaultQueryMaxNum is 32, maxMsgsNumBatch 64)
UNIQUE_FOUND_MAX = 32
FOUND_BYTES_MAX = 4 << 20  # of them, apart from the first one (RocketMQ: maxMessageSize)
UNIQUE: Final = "_UNIQUE_KEY_QUERY"
TAG_TYPE: Final = "T"  # of `indexType`, which 5.4's clients send


class Records:
    """Handles queries on the loop's thread."""

    def __init__(self, log: RecordLog) -> None:
        """Take the store."""
        self.log = log

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.VIEW_MESSAGE_BY_ID: self.view, RequestCode.QUERY_MESSAGE: self.query}

    def view(self, peer: Peer, request: Command) -> Reply:
        """Return the record at a physical offset."""
        record, _ = read_at(self.log, request.int64("offset"))
        return Reply(body=[record])

    def query(self, peer: Peer, request: Command) -> Reply:
        """Return the records with a key, or a tag, the newest first."""
        topic, key = request.text("topic"), request.text("key")
        check_topic(topic, system_allowed=True)
        if by_tag := request.fields.get("indexType") == TAG_TYPE:
            key = tag_key(key)
        most = UNIQUE_FOUND_MAX if request.boolean(UNIQUE) else FOUND_MAX
        places = self.log.find_by_key(
            topic,
            key,
            limit=max(1, min(request.int32("maxNum"), most)),
            begin=max(request.int64("beginTimestamp"), 0),
            end=request.int64("endTimestamp"),
        )
        found: list[bytes | memoryview] = []
        newest = size = last = 0
        for place in places:
            record, message = read_at(self.log, place)
            if found and size + len(record) > FOUND_BYTES_MAX:
                break
            size += len(record)
            newest, last = max(newest, message.store_timestamp), max(last, place)
            found.append(record)
        if not found:
            return Reply(
                ResponseCode.QUERY_NOT_FOUND,
                {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"},
                remark=f"no message of {topic} in that time has the {'tag' if by_tag else 'key'}"
                + ("; tags are found where index_tags is set" if by_tag else ""),
            )
        fields = {"indexLastUpdateTimestamp": str(newest), "indexLastUpdatePhyoffset": str(last)}
        return Reply(fields=fields, body=found)

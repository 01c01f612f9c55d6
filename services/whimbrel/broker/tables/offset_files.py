"""`config/consumerOffset.json` and `config/delayOffset.json`: RocketMQ's offset files.

A group's progress is kept in the lease journal; this file is a copy of it in RocketMQ's form. It is written
every `EXPORT_INTERVAL_S` and at stop, so that RocketMQ's tools and brokers can go on from it. It is read when
the store is opened, so that a store which RocketMQ has used goes on here: the larger of the journal's offset
and the file's counts.

    consumerOffset.json   `topic@group` → queue id → next offset to consume
    lmqConsumerOffset.json  the same, where a broker of RocketMQ 5 with `enableLmq` keeps those of all groups:
                          it counts where it is newer, and is never written
    delayOffset.json      delay level → next offset to deliver (`timing/levels.py`); slaves get the text
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.model.topic import DataVersion
from whimbrel.store import jsonconfig

__all__ = ["EXPORT_INTERVAL_S", "DelayOffsets", "OffsetFile", "Offsets", "decode_offsets"]

logger = logging.getLogger(__name__)

EXPORT_INTERVAL_S = 5.0  # RocketMQ's flushConsumerOffsetInterval

LMQ_FILE = "lmqConsumerOffset.json"
QUEUE_ID_MAX = (1 << 31) - 1  # an int32 in records and lease entries
NAME_BYTES_MAX = 255  # of a topic or group in lease entries

Offsets = Mapping[tuple[str, str], Mapping[int, int]]  # (topic, group) → queue id → next offset


def decode_offsets(content: Any) -> dict[tuple[str, str], dict[int, int]]:
    """Return the offsets of a parsed file.

    What names no topic, group or queue that can be, or an offset below 0, is left out. An offset beyond the
    end of its queue is left to who knows that end.

    Raises:
        StoreError: a value is not an offset.
    """
    table = content.get("offsetTable") if isinstance(content, dict) else None
    offsets: dict[tuple[str, str], dict[int, int]] = {}
    for name, queues in (table or {}).items():
        topic, separator, group = str(name).partition("@")
        if not separator or not isinstance(queues, dict):
            continue
        if max(len(topic.encode()), len(group.encode())) > NAME_BYTES_MAX:
            logger.warning("the offsets of %.80s... are left out: no topic or group has such a name", name)
            continue
        try:
            found = {int(queue): int(offset) for queue, offset in queues.items()}
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f"the offsets of {name} are none: {error}") from error
        offsets[topic, group] = {
            queue: offset for queue, offset in found.items() if 0 <= queue <= QUEUE_ID_MAX and offset >= 0
        }
    return offsets


class OffsetFile:
    """consumerOffset.json."""

    def __init__(self, config: Path, files: Files = FILES) -> None:
        """Name the file; nothing is read."""
        self.files = files
        self.path = config / "consumerOffset.json"
        self.version = DataVersion(timestamp=0, counter=0)
        self.written: Offsets | None = None

    def load(self) -> dict[tuple[str, str], dict[int, int]]:
        """Return what the file holds, or the newer one of RocketMQ's `enableLmq`; empty when there is none.

        Raises:
            StoreError: one is damaged, and so is its predecessor.
        """
        offsets, _ = jsonconfig.open_own(self.path, self.take, self.files)
        own, self.version = self.version, DataVersion(timestamp=0, counter=0)
        path = self.path.with_name(LMQ_FILE)
        of_lmq, _ = jsonconfig.open_own(path, self.take, self.files)
        theirs = self.version
        newer = (theirs.timestamp, theirs.counter) > (own.timestamp, own.counter)
        if of_lmq and (newer or not offsets):
            logger.warning("offsets of groups are taken from %s, newer than %s", path, self.path.name)
            return {**(offsets or {}), **of_lmq}
        self.version = own
        return offsets or {}

    def take(self, content: Any) -> dict[tuple[str, str], dict[int, int]]:
        offsets = decode_offsets(content)
        try:
            self.version = DataVersion.from_bean(content.get("dataVersion") or {})
        except (AttributeError, TypeError, ValueError) as error:
            raise StoreError(f"it has no offsets: {error!r}") from error
        return offsets

    def encode(self, offsets: Offsets, *, pretty: bool = True) -> str:
        """Return the file's text for these offsets."""
        table = {
            f"{topic}@{group}": dict(sorted(queues.items())) for (topic, group), queues in offsets.items()
        }
        content = {"dataVersion": self.version.bean(), "offsetTable": table}
        return jsonconfig.dumps(content, pretty=pretty)

    def save(self, offsets: Offsets, now_ms: int) -> None:
        """Write the file if an offset has changed since the last time; may run in a thread."""
        if offsets != self.written:
            self.version = self.version.after(now_ms)
            jsonconfig.save(self.path, self.encode(offsets), self.files)
            self.written = offsets


class DelayOffsets:
    """delayOffset.json: up to where each level of delayed messages was delivered; slaves get its text."""

    def __init__(self, config: Path, files: Files = FILES) -> None:
        """Read the text as it is; a damaged file is left alone, since it is not needed."""
        self.files = files
        self.path = config / "delayOffset.json"
        self.text = ""
        try:
            text = files.read_bytes(self.path).decode("utf-8")
            jsonconfig.loads(text)
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError, StoreError) as error:
            logger.warning("%s is damaged, and left as it is: %s", self.path, error)
            return
        self.text = text

    def position(self, level: int) -> int:
        """Return where a level's next message stands; 0 when the file does not say."""
        table = (jsonconfig.loads(self.text) if self.text else {}).get("offsetTable") or {}
        found = table.get(level)
        return found if isinstance(found, int) and found > 0 else 0

    def save(self, positions: Mapping[int, int], now_ms: int) -> None:
        """Write positions of some levels, if one differs from what the file says.

        Raises:
            OSError, StoreFull: it can't be written.
        """
        content = jsonconfig.loads(self.text) if self.text else {}
        table = dict(content.get("offsetTable") or {})
        if all(table.get(level, 0) == position for level, position in positions.items()):
            return
        version = DataVersion.from_bean(content.get("dataVersion") or {}).after(now_ms)
        content |= {
            "dataVersion": version.bean(),
            "offsetTable": dict(sorted((table | dict(positions)).items())),
        }
        text = jsonconfig.dumps(content)
        jsonconfig.save(self.path, text, self.files)
        self.text = text

    def replace(self, text: str) -> bool:
        """Take over the master's text; return whether it differed."""
        if text == self.text or not text:
            return False
        try:
            jsonconfig.loads(text)
        except StoreError as error:
            logger.warning("the master's delay offsets are left out: %s", error)
            return False
        jsonconfig.save(self.path, text, self.files)
        self.text = text
        return True

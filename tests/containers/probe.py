"""Looks into the store of the container that it runs in; tests hand its text to `python -c` there.

    python -c TEXT marks                 the page of marks
    python -c TEXT log FROM TO TOPIC     a hash of these bytes of the log, and the records of a topic in them
    python -c TEXT fill                  fill the disk to the last byte, but for what the file system keeps
    python -c TEXT free                  give that back

Prints one JSON value.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from whimbrel.store.codec import decode_record
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.view import LogView
from whimbrel.store.walk import Walk

STORE = Path("/store")
FILLER = STORE / "filler"


def marks() -> dict[str, Any]:
    """Return how far log, queues and slaves are."""
    page = SharedPage.open(STORE)
    return {
        "epoch": page.epoch,
        "written": page.written,
        "dispatched": page.dispatched,
        "acks": page.live_acks(),
        "trouble": page.trouble,
    }


def log(begin: int, end: int, topic: str) -> dict[str, Any]:
    """Return the hash of a range, and (queue, offset, body) of its records."""
    view = LogView.of(STORE)
    digest, records = hashlib.sha256(), []
    position = begin
    while position < end:
        piece = bytes(view.segments.read(position, min(1 << 20, end - position)))
        if not piece:
            break
        digest.update(piece)
        position += len(piece)
    walk = Walk(view.segments.read, begin, end, view.segments.file_size)
    while (chunk := walk.next_chunk()) is not None:
        _, data, positions = chunk
        for at in positions:
            record = decode_record(data, at, check_crc=True)
            if record.topic == topic:
                records.append([record.queue_id, record.queue_offset, bytes(record.body).decode()])
    return {
        "sha256": digest.hexdigest(),
        "hashed": position,
        "walked": walk.position,
        "fault": walk.fault,
        "records": records,
    }


def fill() -> int:
    """Take all that is free; return how much that was."""
    taken = 0
    with FILLER.open("ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    taken += filler.write(bytes(size))
            except OSError:
                continue
    return taken


def free() -> None:
    """Give the disk back."""
    FILLER.unlink(missing_ok=True)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "log":
        print(json.dumps(log(int(words[0]), int(words[1]), words[2])))
    else:
        print(json.dumps({"marks": marks, "fill": fill, "free": free}[what]()))

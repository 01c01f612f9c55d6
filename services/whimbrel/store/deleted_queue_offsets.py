"""Where the queues of deleted topics ended: a new topic of the same name continues there.

No queue offset is given twice. The log still holds the records of a deleted topic. A slave, and a start that
rebuilds the queues, puts each record at its stored queue offset, and leaves out those below the offset at
which the topic was deleted. (RocketMQ begins again at 0, and loses records that were acknowledged since.)

Kept in `STORE/whimbrel/queue-floors.json` and sent to slaves as the same text (`queue_floors.py`). Entries
below an offset are not shown. It grows by one offset for each deleted queue.

**Where members elect their leader** these offsets are a part of the tables, and a member that takes over
another one's tables has its offsets, no others (Q7 in `tests/models/rules.py`). Else a deletion that was
answered to nobody, and is taken back with its leader, would hide messages that were acknowledged: those that
the topic had, and those to which a later leader gave the numbers that the deleted queue had come to. The
entries of queues whose offsets go back are made anew from the log (`MessageStore.take_deleted_offsets`).
"""

from whimbrel.store.queue_floors import QueueFloors

__all__ = ["DeletedQueueOffsets"]


class DeletedQueueOffsets(QueueFloors):
    """The first offset that is shown, by topic and queue id; 0 for a queue that was never deleted."""

    FILE = "queue-floors.json"
    ADVICE = "deleted topics then begin anew"

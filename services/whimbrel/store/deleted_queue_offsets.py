"""Where the queues of deleted topics ended: a new topic of the same name continues there.

No queue offset is given twice. The log still holds the records of a deleted topic. A slave, and a start that
rebuilds the queues, puts each record at its stored queue offset, and leaves out those below the offset at
which the topic was deleted. (RocketMQ begins again at 0, and loses records that were acknowledged since.)

Kept in `STORE/whimbrel/queue-floors.json` and sent to slaves as the same text (`queue_floors.py`). Entries
below an offset are not shown. It grows by one offset for each deleted queue.
"""

from whimbrel.store.queue_floors import QueueFloors

__all__ = ["DeletedQueueOffsets"]


class DeletedQueueOffsets(QueueFloors):
    """The first offset that is shown, by topic and queue id; 0 for a queue that was never deleted."""

    FILE = "queue-floors.json"
    ADVICE = "deleted topics then begin anew"

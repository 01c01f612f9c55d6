"""The two processes in the page of marks: whether each lives and sleeps, and what it says of itself.

    at    cells                                                                         written by
     128  HA port, pid, beat, sleeping, connected                                       the replicator
    1728  sleeping, dispatched, confirmed, pid, beat, broker id, writable, lane pass    the broker
    1792  address of the master's replicator, text of 320 bytes                         the broker
    2112  why replication does not work, text of 320 bytes                              the replicator
    2496  host at which the master's replicator is reached, text of 320 bytes           the replicator
    2816  broker name, text of 136 bytes                                                the broker
    3080  lane pass                                                                     the replicator
    3104  retention, 3 free cells                                                       the replicator
    3392  address from which a slave's replicator is connected, text of 64 bytes        the replicator
    4376  retention                                                                     the broker

**Sleeping.** A process that is about to wait sets its flag, reads the cells once more, and only then waits; a
process that moves a cell reads the other's flag afterwards and rings. That order needs a full memory barrier
between the store and the load on both sides: the flag's accessors have one.
"""

from whimbrel.store.page_cells import Cell, Part, RetentionCell, SleepCell, Text

__all__ = ["BEAT_MAX_NS", "Processes"]

# A process whose beat is older is taken for dead. Each beats at every turn of its loop, many times a second.
BEAT_MAX_NS = 3_000_000_000

REPLICA, BROKER = 128, 1728
MASTER_HA, TROUBLE, HA_HOST, TEXT_BYTES = 1792, 2112, 2496, 320
BROKER_NAME, NAME_BYTES = 2816, 136
LOCAL_HA, ADDRESS_BYTES = 3392, 64


class Processes(Part):
    """What the broker and the replicator each say of themselves."""

    ha_port = Cell(REPLICA)  # bound port of a master's replicator, else 0
    ha_host = Text(HA_HOST, TEXT_BYTES)  # set before the port; "": not known
    replica_pid = Cell(REPLICA + 8)
    replica_beat_ns = Cell(REPLICA + 16)
    replica_sleeping = SleepCell(REPLICA + 24)
    connected = Cell(REPLICA + 32)  # 1: a slave's replicator is connected to its master
    trouble = Text(TROUBLE, TEXT_BYTES)  # one sentence for people; "" when all is well
    trouble_version = Cell(TROUBLE)  # another one whenever it was written
    replica_pass = Cell(3080)  # 1 while the compiled lane decides something in the replicator
    replica_retention = RetentionCell(3104)  # as `broker_retention`, of the replicator
    local_ha = Text(LOCAL_HA, ADDRESS_BYTES)  # slave: "host:port" of our end of the connection to the master
    local_ha_version = Cell(LOCAL_HA)  # another one whenever it was written

    broker_sleeping = SleepCell(BROKER)
    dispatched = Cell(BROKER + 8)  # the log up to here stands in the consume queues
    # Every in-sync slave holds the log up to here, see `broker/produce/confirmed_offset.py`.
    confirmed = Cell(BROKER + 16)
    broker_pid = Cell(BROKER + 24)
    broker_beat_ns = Cell(BROKER + 32)
    broker_id = Cell(BROKER + 40)
    writable = Cell(BROKER + 48)  # 1: a master that takes messages
    lane_pass = Cell(BROKER + 56)  # 1: a pass of the compiled lane is under way, see `lane_passes.py`
    broker_name = Text(BROKER_NAME, NAME_BYTES)
    master_ha = Text(MASTER_HA, TEXT_BYTES)  # slave: "host:port" of the master's replicator, "" = unknown
    master_ha_version = Cell(MASTER_HA)  # another one whenever it was written
    broker_retention = RetentionCell(4376)  # the broker's settings; see `store/retention.py`

    def replica_alive(self, now_ns: int) -> bool:
        """Return whether the replicator has beaten lately."""
        return now_ns - self.replica_beat_ns < BEAT_MAX_NS

    def broker_alive(self, now_ns: int) -> bool:
        """Return whether the broker has beaten lately."""
        return now_ns - self.broker_beat_ns < BEAT_MAX_NS

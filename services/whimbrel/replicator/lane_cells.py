"""Which cells of the page of marks the compiled lane reads and writes while it replicates, and which ones a
run of it stands on: it ends where one of those has changed."""

from typing import Final

from whimbrel.store.page_slots import ACKS, SENT, SENT_BYTES
from whimbrel.store.shared_page import SharedPage

__all__ = ["FOLLOWER_CELLS", "LEADER_CELLS", "PLACES", "Watched", "watched"]

Watched = list[tuple[int, int]]  # cells of the page that a run stands on, in bytes, and what they held

PLACES: Final = {
    **{
        place: SharedPage.place(name)
        for place, name in (
            ("epoch", "epoch"),
            ("begin", "begin"),
            ("written", "written"),
            ("replaced", "replaced"),
            ("log_beat", "log_beat_ns"),
            ("replica_beat", "replica_beat_ns"),
            ("replica_sleeping", "replica_sleeping"),
            ("replica_pass", "replica_pass"),
            ("broker_sleeping", "broker_sleeping"),
            ("broker_beat", "broker_beat_ns"),
            ("commit", "commit"),
            ("commit_saw", "commit_saw"),
            ("flushed", "flushed"),
            ("heard", "heard_ns"),
            ("heard_commit", "heard_commit"),
        )
    },
    "acks": ACKS,
    "sent": SENT,
    "sent_bytes": SENT_BYTES,
}


LEADER_CELLS: Final = tuple(
    SharedPage.place(name)
    for name in ("ha_dialect", "leader_log", "leader_epoch", "leader_start", "voter_bits", "replica_role")
)
FOLLOWER_CELLS: Final = tuple(
    SharedPage.place(name)
    for name in ("ha_dialect", "promise", "elected", "replica_role", "master_ha_version")
)


def watched(page: SharedPage, places: tuple[int, ...]) -> Watched:
    """Return what cells of the page hold now."""
    return [(place, page.cells[place // 8]) for place in places]

"""What of its log a slave keeps because its master does (F5; docs/proof.md, R21).

The master stores what still waits again, at the log's end, before it removes the file where it stands; who
is to lead one day needs one or the other. So a slave removes nothing that the master keeps, and takes over
from where the master keeps its log only once its own has come to where the master's ended then:

    nothing told     0: nothing is removed. A slave whose replicator is told RocketMQ's master by `master_ha`,
                     which tells nothing, goes by its own settings
    told, not there  as before
    told, there      the master's begin, and 1: a log that begins at 0 has told, too
    another master   at once the lower one of what was told before and what it tells; a higher one as above
    it never tells   NOT_TOLD: it is of an earlier version; by the slave's own settings
"""

from collections.abc import Callable

from whimbrel.store.page_elections import NOT_TOLD, ElectionMailbox

__all__ = ["KeptLog"]


class KeptLog:
    """Tells the replicator beside, through the page, from where on the master keeps its log.

    Attributes:
        told: begin and end of the master's log that are not taken over yet; None: nothing waits.
    """

    def __init__(self, page: ElectionMailbox, flushed: Callable[[], int]) -> None:
        """Begin to follow; `flushed` returns up to where our log is on disk, since files go for good."""
        self.page, self.flushed = page, flushed
        self.told: tuple[int, int] | None = None
        page.leader_begin = 0  # another master may keep more than the last one did

    def learn(self, told: tuple[int, int] | None) -> None:
        """Learn where the master's log begins, and ended then; None: it does not say."""
        if told is None:
            self.page.leader_begin, self.told = NOT_TOLD, None
            return
        self.page.leader_begin = min(self.page.leader_begin, told[0] + 1)
        if self.told is None or told[0] < self.told[0]:
            self.told = told
        self.look()

    def look(self) -> None:
        """Take over what was told, once our log is long enough; to be called now and then."""
        if self.told is not None and self.flushed() >= self.told[1]:
            self.page.leader_begin, self.told = self.told[0] + 1, None

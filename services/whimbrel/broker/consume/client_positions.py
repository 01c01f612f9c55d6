"""Positions as clients own them that share queues out among themselves (the remoting protocol).

Such a client reads a group's position once, when it takes a queue over, and commits its own from then on,
each few seconds and when it gives the queue up. RocketMQ stores whatever it says. Here

- what lies outside the queue is brought within it: a position beyond the end would count messages as done
  that are still to come;
- a commit that lies further back has no effect for as long as members own the positions: it is late, of a
  member that has lost the queue already. Without a member it resets, since a tool says so on purpose. Who is
  a member is known from heartbeats, and a broker that has just begun to serve has heard none: for
  `UNHEARD_S` no commit moves back what was there before, or has come from another broker since: unknown is
  not nobody;
- after a **reset**, whichever protocol it came by, members go on with what they had read before, and would
  commit that. So a reset queue is *redirected*: their commits have no effect, and pulls are sent to the reset
  position, until a pull comes there, or the position moves in another way, or for `REDIRECT_S`: a program
  that keeps its offsets itself may pull from where it likes.

    reset ──► redirected ──pull at the position, acknowledgement, commit of a tool, time──► as always

Redirections are kept in memory: a restart loses those whose clients have not followed yet, as RocketMQ 5's.
"""

from collections.abc import Callable

from whimbrel.broker.consume.positions import Positions

__all__ = ["REDIRECTED_MAX", "REDIRECT_S", "UNHEARD_S", "ClientPositions"]

REDIRECTED_MAX = 100_000  # queues of groups; the oldest go first: some 30 MB
REDIRECT_S = 120.0  # clients follow within 40 s, and a silent one is no member after 120
BEGUN_MAX = 100_000
UNHEARD_S = 60.0  # a client finds a broker within 30 s, and tells it that it lives within as many more

Place = tuple[str, str, int]  # group, topic, queue id


class ClientPositions:
    """Reads, commits and resets positions for such clients; on the loop's thread."""

    def __init__(
        self,
        positions: Positions,
        *,
        monotonic: Callable[[], float],
        wake: Callable[[str, int], None] = lambda topic, queue_id: None,
    ) -> None:
        """Take what the broker knows of positions, and hear of its resets from now on.

        Args:
            positions: see above.
            monotonic: seconds of a clock that never jumps.
            wake: has reads that wait on a queue (topic, id) look again.
        """
        self.positions, self.wake, self.monotonic = positions, wake, monotonic
        self.redirected: dict[Place, tuple[int, float]] = {}  # position, and until when
        self.unheard_until = monotonic() + UNHEARD_S
        self.begun: set[Place] = set()  # that had no position before a commit here; kept until then
        positions.on_reset = self.was_reset

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's position; None where it has none."""
        known = self.positions.table.position(group, topic, queue_id)
        return None if known is None or known[2] < 0 else known[2]

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, owned: bool) -> None:
        """Take a position that a client commits.

        Args:
            group, topic, queue_id, offset: whose position, where, and what it is.
            owned: members of the group own its positions now.

        Raises:
            StoreFull: it can't be written down.
        """
        place = group, topic, queue_id
        if self.target(place) is not None:
            if owned:
                return
            del self.redirected[place]
        low, high = self.positions.store.queue_range(topic, queue_id)
        offset = min(max(offset, low), high)
        known = self.get(*place)
        unheard = self.monotonic() < self.unheard_until
        if not unheard:
            self.begun.clear()
        if known is None or offset > known:
            self.positions.update_offset(group, topic, queue_id, offset)
            if known is None and unheard and len(self.begun) < BEGUN_MAX:
                self.begun.add(place)
        elif offset < known and not owned and (not unheard or place in self.begun):
            self.positions.reset_offset(group, topic, queue_id, offset)

    def was_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have clients follow a position that was reset."""
        place = group, topic, queue_id
        self.redirected.pop(place, None)
        if len(self.redirected) >= REDIRECTED_MAX:
            del self.redirected[next(iter(self.redirected))]
        self.redirected[place] = offset, self.monotonic() + REDIRECT_S
        self.wake(topic, queue_id)

    def redirect(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Return where a pull at an offset is to go on instead; None: there."""
        place = group, topic, queue_id
        target = self.target(place)
        if target == offset:
            del self.redirected[place]
            return None
        return target

    def target(self, place: Place) -> int | None:
        """Return where clients are to go, if the position is still there."""
        found = self.redirected.get(place)
        if found is None:
            return None
        target, until = found
        if self.get(*place) != target or self.monotonic() > until:
            del self.redirected[place]
            return None
        return target

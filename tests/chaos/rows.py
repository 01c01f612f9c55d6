"""What `beside.py` finds out, a row for each round."""

from dataclasses import dataclass, field

__all__ = ["AIMS_S", "AWAY_S", "BOUND_S", "FAULTS", "Row"]

FAULTS = ("kill -9", "hang", "partition")
AIMS_S = {"kill -9": 2.0, "hang": 5.0, "partition": 5.0}  # for sends to go on
AWAY_S = 15.0  # a fault lasts so long at least: what an SDK does about it may come late
BOUND_S = 90.0  # and so long at most


@dataclass(slots=True, kw_only=True)
class Row:
    """A round; times are seconds, None where there was nothing within `BOUND_S`.

    Attributes:
        route: until a new query of the route named another leader.
        newcomer: until a client that came with the fault had a send acknowledged.
        sends, receives: by SDK, the longest time without an acknowledged send, and without a message.
        connected: SDKs whose producer was connected to the leader; RocketMQ's are all connected to its proxy.
        away: how long the fault lasted.
        back: from its end until all members were in step again, and all SDKs sent and received.
        after: by SDK, the longest time without an acknowledged send meanwhile.
        acknowledged, given_up: sends since the fault until the next one; those given up failed for the SDK.
        lost: of those acknowledged, how many are in no queue.
        duplicates: of both, how many are at several places.
        cut_bytes: cut off the logs of former leaders; None: not known.
        minutes: what the round took, as a part of its stage.
    """

    system: str
    fault: str
    route: float | None = None
    newcomer: float | None = None
    sends: dict[str, float | None] = field(default_factory=dict)
    receives: dict[str, float | None] = field(default_factory=dict)
    connected: list[str] = field(default_factory=list)
    away: float = 0.0
    back: float = 0.0
    after: dict[str, float] = field(default_factory=dict)
    acknowledged: int = 0
    given_up: int = 0
    lost: int = 0
    duplicates: int = 0
    cut_bytes: int | None = None
    seed: int = 0
    commit: str = ""
    minutes: float = 0.0

    def told(self) -> str:
        """Return it as a line."""
        sends = ", ".join(f"{name} {seconds(each)}" for name, each in self.sends.items())
        receives = ", ".join(f"{name} {seconds(each)}" for name, each in self.receives.items())
        return (
            f"{self.system}, {self.fault}: route {seconds(self.route)}, new client {seconds(self.newcomer)};"
            f" sends {sends}; receives {receives}; away {self.away:.0f} s, back in {self.back:.0f} s,"
            f" sends paused then {max(self.after.values(), default=0.0):.1f} s at most;"
            f" connected to the leader: {', '.join(self.connected) or 'none'}"
        )


def seconds(found: float | None) -> str:
    """Return a time."""
    return "none" if found is None else f"{found:.2f}"

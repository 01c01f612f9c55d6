"""Which side was the limit of a load: the one that wanted a core all the time. Pure.

    broker   one thread of it serves calls, so it is at its end with one core
    client   each of its processes is at its end with one core
    both     the broker and the client
    machine  together they wanted all of its cores
    neither  calls waited for something else: a disk, a slave, the network; or there were too few at a time

A process wants a core while it runs on one, and while it waits for one that another process has. It is at
its end when that is FULL of the time; not all of it, since a wake-up takes a moment. A broker of several
threads that serve calls, as RocketMQ's, is not at its end with one core: for it the figures say more than the
verdict.

A run below MEASURED_S_MIN is too short to tell.
"""

from dataclasses import dataclass
from typing import Literal

from whimbrel.cli.process_times import CoreTimes

__all__ = ["FULL", "MEASURED_S_MIN", "Limit", "Use", "limit_of", "use_of"]

FULL = 0.85  # of a core
MEASURED_S_MIN = 0.5
WAITED_MIN = 0.1  # of a core; less of waiting is not worth a word

Limit = Literal["broker", "client", "both", "machine", "neither", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What the processes of one side have used.

    Attributes:
        cpu_s: time on cores, in seconds.
        waited_s: time for which the busiest thread of each waited for a core, in seconds.
        processes: that share the work: each can use one core.
    """

    cpu_s: float
    waited_s: float
    processes: int

    @property
    def wanted_s(self) -> float:
        """Time of cores that they had or waited for."""
        return self.cpu_s + self.waited_s

    def full(self, seconds: float) -> bool:
        """Return whether they could not have done more in that time."""
        return self.wanted_s >= FULL * seconds * self.processes

    def shown(self, seconds: float) -> str:
        """Return it as words that follow "used"."""
        cores, waited = self.cpu_s / seconds, self.waited_s / seconds
        text = f"{cores:.2f} of {'a core' if self.processes == 1 else f'{self.processes} cores'}"
        return text + (f" (and wanted {waited:.2f} more that others had)" if waited >= WAITED_MIN else "")


def use_of(before: CoreTimes | None, after: CoreTimes | None) -> Use | None:
    """Return what processes have used between two moments; None where it can't be known."""
    if not before or after is None or before.keys() != after.keys():
        return None
    ran_ns = waited_ns = 0
    for pid, threads in after.items():
        earlier = before[pid]
        used = []
        for thread, (ran, waited) in threads.items():
            ran_before, waited_before = earlier.get(thread, (0, 0))
            used.append((ran - ran_before, waited - waited_before))
        ran_ns += sum(ran for ran, _ in used)
        waited_ns += max(used, default=(0, 0))[1]
    return Use(cpu_s=ran_ns / 1e9, waited_s=waited_ns / 1e9, processes=len(after))


def limit_of(client: Use | None, broker: Use | None, *, seconds: float, cores: int) -> tuple[Limit, str]:
    """Return the limit, and a sentence that says why, without its end.

    Args:
        client: this side; None where it can't be known.
        broker: the other one, several brokers together; None where it can't be known.
        seconds: for how long it was measured.
        cores: of this machine.
    """
    if seconds < MEASURED_S_MIN:
        return "unknown", f"which side was the limit is not known: {seconds:.2f} s are too short to tell"
    if client is None:
        return "unknown", "which side was the limit is not known: this machine does not tell core times"
    ours = client.shown(seconds)
    if broker is None:
        unknown = "what the broker used can't be seen from here"
        if client.full(seconds):
            return "client", f"this client was the limit: it used {ours}; {unknown}"
        return "unknown", f"this client was not the limit: it used {ours}; {unknown}"
    theirs = broker.shown(seconds)
    one = broker.processes == 1
    name, was, it = ("the broker", "was", "it") if one else ("the brokers", "were", "they")
    match broker.full(seconds), client.full(seconds):
        case True, True:
            return "both", f"both sides were the limit: {name} used {theirs}, this client {ours}"
        case True, False:
            return "broker", f"{name} {was} the limit: {it} used {theirs}, this client {ours}"
        case False, True:
            return "client", f"this client was the limit: it used {ours}, {name} {theirs}"
    if client.wanted_s + broker.wanted_s >= FULL * cores * seconds:
        return (
            "machine",
            f"the machine's {cores} cores were the limit: {name} used {theirs}, this client {ours}",
        )
    return "neither", (
        f"neither side was the limit, so calls waited for something else: {name} used {theirs},"
        f" this client {ours}"
    )

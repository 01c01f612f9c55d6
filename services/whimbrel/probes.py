"""What a process answers when it is asked whether it lives and whether it is ready.

    GET /healthz    200 while its loop turns, 503 when it has not for STALL_S; 200 while the process starts,
                    since recovering a large log takes as long as it takes
    GET /readyz     200 while all conditions of its role are met, else 503 and why

    nameserver              settled: every broker had the time to register
    broker, master          writable: it takes messages now
    broker, slave           connected: its replicator is connected to the master's
    replicator, master      feeding: the log is recovered, and slaves are let in
    replicator, slave       connected to the master's replicator

Both are served on the metrics port, and on `health_port` where that is set, which needs no OpenTelemetry. The
answer is JSON, for people and programs:

    {"process": "broker", "role": "slave", "ready": false,
     "conditions": [{"name": "connected", "met": false, "why": "..."}]}

Questions come in threads of the port. A role takes its conditions away before it closes what they read.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whimbrel.http_port import Answer, HttpPort, Request

__all__ = ["HEALTH", "NOT_CONNECTED", "READY", "STALL_S", "TURN_S", "Condition", "Probes", "serve_health"]

HEALTH, READY = "/healthz", "/readyz"
STALL_S = 3.0  # as others take a process for dead whose beat in the shared page is older
TURN_S = 0.5  # between two notes of a loop that has nothing else to do
NOT_CONNECTED = "this slave's replicator has no connection to its master's"
NOT_SERVING = "no role is served yet, or any more: it starts, stops, or is given another role"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of being ready; `why` says what is missing where it is not met."""

    name: str
    met: bool
    why: str = ""


class Probes:
    """The state behind both questions.

    Attributes:
        turned_at: when the loop turned last, by the clock; None until the process has started.
    """

    def __init__(self, process: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.process, self.clock = process, clock
        self.lock = threading.Lock()
        self.role = ""
        self.conditions: Callable[[], Sequence[Condition]] | None = None
        self.turned_at: float | None = None

    def turn(self) -> None:
        """Note that the loop turns; to be called by it, every `TURN_S` or more often."""
        self.turned_at = self.clock()

    def serve(self, role: str, conditions: Callable[[], Sequence[Condition]]) -> None:
        """Answer for a role from now on; `conditions` is called from other threads, so it must only read."""
        with self.lock:
            self.role, self.conditions = role, conditions

    def withdraw(self) -> None:
        """Answer for no role; afterwards nothing reads what its conditions read."""
        with self.lock:
            self.conditions = None

    def health(self) -> dict[str, Any]:
        """Return whether the process lives."""
        turned_at = self.turned_at
        if turned_at is None:
            return {"process": self.process, "alive": True, "state": "starting"}
        age_s = max(self.clock() - turned_at, 0.0)
        if age_s > STALL_S:
            state = f"its loop has not turned for {age_s:.1f} s"
            return {"process": self.process, "alive": False, "state": state}
        return {"process": self.process, "alive": True, "state": "its loop turns"}

    def readiness(self) -> dict[str, Any]:
        """Return whether the process is ready, and what is missing."""
        health = self.health()
        conditions: list[Condition] = []
        if not health["alive"]:
            conditions.append(Condition("alive", False, health["state"]))
        with self.lock:
            role = self.role
            if self.conditions is None:
                conditions.append(Condition("serving", False, NOT_SERVING))
            else:
                conditions += self.conditions()
        ready = all(condition.met for condition in conditions)
        return {
            "process": self.process,
            "role": role,
            "ready": ready,
            "conditions": [asdict(condition) for condition in conditions],
        }

    def answer(self, request: "Request") -> "Answer | None":
        """Return the answer to a request; None when it asks for something else."""
        from whimbrel.http_port import Answer

        if request.path == HEALTH:
            told = self.health()
            good = told["alive"]
        elif request.path == READY:
            told = self.readiness()
            good = told["ready"]
        else:
            return None
        body = json.dumps(told, ensure_ascii=False).encode() + b"\n"
        return Answer(200 if good else 503, [("Content-Type", "application/json")], body)


def serve_health(probes: Probes, *, host: str, port: int) -> "HttpPort | None":
    """Serve both questions until the port is closed; None for a port below 0, which means none.

    Raises:
        OSError: the port is taken, or the host is not one of this machine's; the text says so.
    """
    if port < 0:
        return None
    from whimbrel.http_port import HttpPort, text_answer  # only where it is wanted

    def answer(request: "Request") -> "Answer":
        return probes.answer(request) or text_answer(404, f"health is at {HEALTH} and {READY}")

    return HttpPort(host, port, answer, what="health")

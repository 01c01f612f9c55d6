"""Spans of elections: each candidacy that asks the coordinator is a trace of its own.

    whimbrel.election             from the first question to the others until this member leads, or does not
    ├─ whimbrel.election.asking   what the others hear
    ├─ whimbrel.election.swapping until the coordinator's record names this member
    ├─ whimbrel.election.sealing  until enough voters have promised
    └─ whimbrel.election.opening  until the log is this member's to write

The root names the broker, the member, the epoch, and why it stood; one that came to nothing has failed, with
the reason. A member that asks the others and hears that there is a leader leaves no trace. Times are the wall
clock's, read when the elector looks at its machine, so they are as exact as that is quick.
"""

import time

from whimbrel.broker.elections.actions import STANDING, State
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.options import BrokerOptions
from whimbrel.model.trace import TraceContext
from whimbrel.telemetry import BROKER_SERVICE, ELECTION, Attribute
from whimbrel.tracing import Tracer, identity, new_context, open_tracer

__all__ = ["ElectionTraces", "open_election_traces"]


class ElectionTraces:
    """What one member traces of its candidacies; `moved` is called whenever its machine may have moved."""

    def __init__(self, tracer: Tracer, own: dict[str, str | int]) -> None:
        """Take the attributes of this member's spans."""
        self.tracer, self.own = tracer, own
        self.close = tracer.close
        self.state = State.FOLLOWING
        self.since_ns = 0
        self.epoch = 0
        self.trigger = ""
        self.steps: list[tuple[State, int, int]] = []  # those that are over, of this candidacy

    def moved(self, machine: Election) -> None:
        """See where the machine is now."""
        state = machine.state
        if state in STANDING:
            self.epoch, self.trigger = machine.epoch or self.epoch, machine.trigger
        if state is self.state:
            return
        now_ns = time.time_ns()
        if self.state in STANDING:
            self.steps.append((self.state, self.since_ns, now_ns))
        self.state, self.since_ns = state, now_ns
        if state not in STANDING:
            if any(step is not State.ASKING for step, _, _ in self.steps):
                self.tell("" if state is State.LEADING else machine.why or "another member leads")
            self.steps.clear()
            self.epoch = 0

    def tell(self, error: str) -> None:
        """Record the candidacy that is over."""
        root: TraceContext = new_context()
        about = {**self.own, Attribute.EPOCH: self.epoch}
        begin_ns, end_ns = self.steps[0][1], self.steps[-1][2]
        why = {Attribute.WHY: self.trigger}
        self.tracer.record(ELECTION, None, begin_ns, end_ns, {**about, **why}, own=root, error=error)
        for state, began_ns, ended_ns in self.steps:
            self.tracer.record(f"{ELECTION}.{state.value}", root, began_ns, ended_ns, about)


def open_election_traces(options: BrokerOptions) -> ElectionTraces:
    """Return the traces of a member whose settings say where spans go."""
    own: dict[str, str | int] = identity(options.name, options.id)
    return ElectionTraces(open_tracer(options.trace_to, BROKER_SERVICE, own), own)

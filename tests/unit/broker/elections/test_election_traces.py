"""What a member traces of its candidacies."""

from support.cluster.spans import memory_tracer
from whimbrel.broker.elections.actions import State
from whimbrel.broker.elections.election_traces import ElectionTraces
from whimbrel.broker.elections.machine import Election
from whimbrel.telemetry import ELECTION, Attribute

OWN: dict[str, str | int] = {Attribute.BROKER: "broker-a", Attribute.BROKER_ID: 1}


class Rig:
    """Traces of a machine whose states are set by the test."""

    def __init__(self) -> None:
        tracer, self.spans = memory_tracer()
        self.traces = ElectionTraces(tracer, OWN)
        self.machine = Election(1, frozenset({1, 2, 3}))

    def go(self, *states: State, why: str = "") -> None:
        for state in states:
            self.machine.state, self.machine.trigger, self.machine.why = state, "member 2 is silent", why
            self.traces.moved(self.machine)
            self.traces.moved(self.machine)  # nothing is recorded twice


def test_a_candidacy_that_leads_is_a_trace_with_its_steps() -> None:
    rig = Rig()
    rig.go(State.ASKING, State.SWAPPING, State.SEALING, State.OPENING)
    assert rig.spans() == []
    rig.go(State.LEADING)
    root, *steps = rig.spans()
    assert root.name == ELECTION and not root.failed and root.parent_id == ""
    assert root.attributes[Attribute.WHY] == "member 2 is silent"
    assert [step.name for step in steps] == [
        f"{ELECTION}.{name}" for name in ("asking", "swapping", "sealing", "opening")
    ]
    assert {(step.trace_id, step.parent_id) for step in steps} == {(root.trace_id, root.span_id)}
    assert (root.start_ns, root.end_ns) == (steps[0].start_ns, steps[-1].end_ns)
    assert [one.end_ns for one in steps[:-1]] == [one.start_ns for one in steps[1:]]


def test_one_that_comes_to_nothing_has_failed_and_says_why() -> None:
    rig = Rig()
    rig.go(State.ASKING, State.SWAPPING)
    rig.go(State.FOLLOWING, why="another member was faster")
    root, *steps = rig.spans()
    assert root.failed and len(steps) == 2
    rig.go(State.ASKING, State.SWAPPING, State.FOLLOWING)
    assert len([span for span in rig.spans() if span.name == ELECTION]) == 2


def test_a_question_to_the_others_alone_is_no_candidacy() -> None:
    rig = Rig()
    rig.go(State.ASKING, State.FOLLOWING, State.ASKING, State.FOLLOWING)
    assert rig.spans() == []

"""What a member says of its elections: log lines, each once, and spans where tracing is on.

the record    once for each revision, as it is kept: who has lost the coordinator's files can put it back
the state     when it, or the reason for it, is another one than was said last
troubles      likewise, among the states
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from whimbrel.broker.elections.actions import STANDING
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.options import BrokerOptions

if TYPE_CHECKING:
    from whimbrel.broker.elections.election_traces import ElectionTraces

__all__ = ["Journal", "logger"]

# All lines of elections bear the elector's name, whichever of its parts they come from.
logger = logging.getLogger("whimbrel.broker.elections.elector")


class Journal:
    """What one member has said.

    Attributes:
        logged: the last line about its state, or a trouble.
        logged_revision: of the last record that was logged.
    """

    def __init__(self, options: BrokerOptions, machine: Election) -> None:
        self.machine = machine
        self.label = f"{options.name}/{options.id}"
        self.logged, self.logged_revision = "", 0
        self.traces: ElectionTraces | None = None
        if options.trace_to:
            from whimbrel.broker.elections import election_traces  # OpenTelemetry: only where tracing is on

            self.traces = election_traces.open_election_traces(options)

    @property
    def standpoint(self) -> str:
        """Why it stands, or why it does not, or does not lead."""
        machine = self.machine
        return machine.trigger if machine.state in STANDING else machine.why

    def look(self) -> None:
        """Say what is new of the machine."""
        machine, view = self.machine, self.machine.view
        if view.record is not None and view.revision > self.logged_revision:
            self.logged_revision = view.revision
            text = replace(view.record, history=view.record.history[:1]).encode().decode()
            logger.info("%s: group record: %s", self.label, text)
        if self.traces is not None:
            self.traces.moved(machine)
        why = self.standpoint
        self.tell(f"{machine.state.value}{': ' if why else ''}{why}")

    def tell(self, text: str) -> None:
        """Log what is new."""
        if text != self.logged:
            self.logged = text
            logger.info("%s: %s", self.label, text)

    def close(self) -> None:
        """End the spans."""
        if self.traces is not None:
            self.traces.close()

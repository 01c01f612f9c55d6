"""What followers have told their leader of themselves, as they introduced themselves: settings, and why they
do not get on.

    introduced  with the reason for which its replicator stalls ("": it does not) ─► reported
    its log has come further than it was then                                      ─► not stalled

So a leader refuses sends that no majority could hold, and names the member, instead of having each wait for
its time. Everybody can introduce members: a report about one that has all of the log does nothing, and each
member repeats its own (`Introduction`).
"""

from dataclasses import dataclass

from whimbrel.broker.cluster.agreement import Settings, differences, parse_settings, retention_of
from whimbrel.escapes import printable
from whimbrel.store.options import Retention
from whimbrel.store.page_cells import SLAVES_MAX

__all__ = ["TROUBLE_CHARS_MAX", "MemberReport", "MemberReports"]

TROUBLE_CHARS_MAX = 320  # as much as a page of marks holds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """What a member says of itself: why its replicator stalls, "" if it does not; its settings, as JSON."""

    trouble: str = ""
    settings: str = ""


class MemberReports:
    """The reports by member id, SLAVES_MAX at most; on the loop's thread.

    Attributes:
        stalled: why members do not get on, and where their logs ended then; read in other threads, too.
    """

    def __init__(self, ours: str) -> None:
        """Take our own settings, as JSON."""
        self.ours = parse_settings(ours)
        self.settings: dict[int, Settings] = {}
        self.stalled: dict[int, tuple[str, int]] = {}

    def take(self, member: int, report: MemberReport, end: int) -> None:
        """Take what a member says, whose log has been acknowledged up to `end`."""
        self.settings.pop(member, None)
        self.settings[member] = parse_settings(report.settings)
        while len(self.settings) > SLAVES_MAX:
            gone = next(iter(self.settings))
            del self.settings[gone]
            self.stalled.pop(gone, None)
        if report.trouble:
            self.stalled[member] = printable(report.trouble[:TROUBLE_CHARS_MAX]), end
        else:
            self.stalled.pop(member, None)

    def unequal(self) -> list[str]:
        """Return which settings of members differ from ours."""
        found = (differences(self.ours, theirs, f"member {one}") for one, theirs in self.settings.items())
        return [text for text in found if text]

    def retentions(self) -> list[Retention]:
        """Return for how long the members keep their logs."""
        return [retention_of(settings) for settings in self.settings.values()]

    def stalls(self, member: int, end: int, written: int) -> bool:
        """Return whether a member whose log is acknowledged up to `end` takes nothing now."""
        report = self.stalled.get(member)
        return report is not None and end <= report[1] and end < written

    def why(self) -> str:
        """Return why members do not get on, in one sentence; "" where all do."""
        return "; ".join(f"member {member}: {text}" for member, (text, _) in sorted(self.stalled.items()))

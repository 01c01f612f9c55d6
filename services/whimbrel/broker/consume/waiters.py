"""What changes of leases and positions tell those who wait for messages (`engine/waiting.py`)."""

from typing import Protocol

__all__ = ["Waiters"]


class Waiters(Protocol):
    """Receives that wait, by topic and group."""

    def has(self, topic: str, group: str) -> bool:
        """Return whether receives of a group wait for a topic."""

    def wake(self, topic: str) -> None:
        """Look soon at the groups that wait for messages of a topic: one may be free again."""

    def wake_all(self) -> None:
        """Look soon at all groups that wait for messages."""

    def visit(self, line: tuple[str, str], in_ms: int) -> None:
        """Look at those of a topic and a group in so many milliseconds, if that is not to be before."""

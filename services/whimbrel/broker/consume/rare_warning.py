"""Warnings of what may happen often: one line in a while, which counts what came since the last one."""

__all__ = ["RareWarning"]


class RareWarning:
    """Decides when such a line is due. It tells also when the clock was set back."""

    def __init__(self, apart_ms: int) -> None:
        """Take how long there is no second line."""
        self.apart_ms = apart_ms
        self.told_at = 0
        self.untold = 0

    def due(self, count: int, now: int) -> int:
        """Add to what is to be told; return how much that is if a line is due, else 0."""
        self.untold += count
        if self.told_at <= now < self.told_at + self.apart_ms:
            return 0
        told, self.told_at, self.untold = self.untold, now, 0
        return told

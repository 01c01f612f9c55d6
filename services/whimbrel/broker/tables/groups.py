"""The broker's consumer groups: `config/subscriptionGroup.json` and the groups that a fresh broker owns."""

from collections.abc import Callable
from pathlib import Path

from whimbrel.broker.tables.versioned import VersionedTable
from whimbrel.machine import FILES, Files
from whimbrel.model.names import BUILT_IN_GROUPS
from whimbrel.model.topic import GroupConfig

__all__ = ["GroupTable"]


class GroupTable(VersionedTable[GroupConfig]):
    """Groups by name."""

    def __init__(
        self,
        config: Path,
        *,
        auto_create: bool,
        clock: Callable[[], int],
        files: Files = FILES,
        on_predecessor: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the table below the config directory and add what a fresh broker owns.

        Args:
            config, clock, files, on_predecessor: see `VersionedTable`. auto_create: receives create groups.
        """
        super().__init__(
            config / "subscriptionGroup.json",
            "subscriptionGroupTable",
            GroupConfig,
            clock=clock,
            files=files,
            on_predecessor=on_predecessor,
        )
        self.auto_create = auto_create
        self.load(GroupConfig(name=name) for name in sorted(BUILT_IN_GROUPS))

    def find(self, name: str, *, create: bool) -> GroupConfig | None:
        """Return the group; an unknown one is made with defaults where `create` and `auto_create` are set."""
        group = self.rows.get(name)
        if group is None and create and self.auto_create:
            self.check_room()
            group = GroupConfig(name=name)
            self.put(group)
        return group

"""`whimbrel restore`: puts a backup of a store in its place (`whimbrel.store.copying`)."""

from pathlib import Path
from typing import Annotated

import typer

from whimbrel.cli.output import Format, OutputOption, emit, note

__all__ = ["restore"]

MEMBER = (
    "{store} is member {member} of a group that elects its leader, with another seat: since the backup was"
    " made it may have promised and acknowledged what the backup does not know, so it does not vote. Start"
    " its broker and its replicator; when it has caught up, `whimbrel replication voters NAME --set ...`"
    " counts it again. Where no leader is left to catch up with, restore the other members as well, then"
    " `whimbrel replication failover NAME --accept-loss`."
)


def restore(
    backup: Annotated[
        Path,
        typer.Argument(metavar="BACKUP", help="A backup, or a store at rest: the one with commitlog/ in it."),
    ],
    store: Annotated[
        Path,
        typer.Argument(metavar="STORE", help="Where it is to be: a directory that is empty, or not there."),
    ],
    output: OutputOption = Format.TABLE,
) -> None:
    """Put a backup of a store in its place; the backup stays as it is.

    Use this and no other copy for a store of a group that elects its leader: a member that was copied back as
    it was would vote with what it has forgotten. Holes stay holes, and times are kept.
    """
    from whimbrel.store.copying import copy_store
    from whimbrel.store.modes import same_modes

    with same_modes(backup):
        done = copy_store(backup, store)
    found = {
        "store": str(store),
        "files": done.files,
        "bytes": done.data_bytes,
        "member": 0 if done.seat is None else done.seat.member,
    }
    emit(found, output, columns=tuple(found), rows=[tuple(found.values())])
    if done.seat is not None and not done.seat.votes:
        note(MEMBER.format(store=store, member=done.seat.member))

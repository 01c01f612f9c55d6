"""The doorbell between a broker and its replicator: a UNIX datagram socket in the store directory.

`STORE/whimbrel/broker.sock` and `STORE/whimbrel/replicator.sock`, each bound by the process it is named
after. A ring is one byte whose content means nothing: it makes the other's `select` return, and the other
then reads the page of marks (`whimbrel.store.shared_page`). So a ring that is lost (the other process is not
there, its queue is full) costs `WAKE_POLL_S` at most. A ring goes through a socket that is connected to the
other's, since looking up the path costs as much as the ring; it is connected anew when the other has gone.

A file system socket works between two containers that share the volume, which an eventfd would not.
`sun_path` holds 108 bytes, and store directories may have longer names: paths go through
`/proc/self/fd/N/`, N being the open directory.
"""

import contextlib
import os
import socket
from pathlib import Path
from typing import Literal

from whimbrel.errors import StoreError

__all__ = ["WAKE_POLL_S", "Bell", "Doorbell"]

Bell = Literal["broker", "replicator"]

WAKE_POLL_S = 0.1  # the longest wait that relies on a ring; what RocketMQ's HA writer always waits


class Doorbell:
    """The socket of this process, and the way to ring the other's."""

    def __init__(self, store_root: Path, name: Bell) -> None:
        """Bind the bell of `name`.

        Raises:
            StoreError: the socket can't be bound in the store directory.
        """
        folder = store_root / "whimbrel"
        self.sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self.folder_fd = -1
        self.out: socket.socket | None = None  # connected to the other's, after the first ring
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.base = f"/proc/self/fd/{self.folder_fd}/"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{name}.sock", dir_fd=self.folder_fd)  # left by a predecessor
            self.sock.bind(f"{self.base}{name}.sock")
        except OSError as error:
            self.close()
            raise StoreError(f"the doorbell {folder / name}.sock can't be bound: {error}") from error

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the other process rings."""
        return self.sock.fileno()

    def out_fileno(self) -> int:
        """Return the descriptor by which the other's bell is rung; -1 before the first ring."""
        return -1 if self.out is None else self.out.fileno()

    def ring(self, other: Bell) -> None:
        """Wake the other process if it is there; never blocks, never fails."""
        # No socket, a dead owner, or a full queue (which wakes it anyway): the poll covers all of them.
        try:
            if self.out is not None:
                self.out.send(b"!")
                return
        except BlockingIOError:
            return
        except OSError:
            self.hang_up()  # its owner has gone; a successor may be there
        with contextlib.suppress(OSError):
            self.out = socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            self.out.connect(f"{self.base}{other}.sock")
            self.out.send(b"!")

    def answers(self, other: Bell) -> bool:
        """Return whether the other process lives: its socket goes with it, however it ends."""
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(f"{self.base}{other}.sock")
            except OSError:
                return False
        return True

    def hang_up(self) -> None:
        """Close the way to the other's socket."""
        out, self.out = self.out, None
        if out is not None:
            out.close()

    def take(self) -> bool:
        """Receive one ring; return whether there was one.

        Mostly there is one only. Where there are more the bell stays readable, and wakes its owner again:
        that costs less than to ask each time whether there is another.
        """
        try:
            self.sock.recv(1)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the bell. The socket file stays: a successor may have bound its own there already."""
        self.hang_up()
        self.sock.close()
        if self.folder_fd >= 0:
            os.close(self.folder_fd)
            self.folder_fd = -1

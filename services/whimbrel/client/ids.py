"""Message ids and client ids. Pure but for facts on the process, which are read once, on the first use.

A message id is 17 bytes as 34 upper-case hex digits, as the official SDKs make them:

    01 | 6 bytes hardware address | 2 bytes low process id | 4 bytes seconds since 2021-01-01 UTC
       | 4 bytes sequence

all big endian.
"""

import itertools
import os
import secrets
import time
import uuid

__all__ = ["EPOCH_S", "MessageIds", "client_id", "pack_message_id"]

EPOCH_S = 1_609_459_200  # 2021-01-01T00:00:00Z


def pack_message_id(*, hardware: int, process: int, seconds: int, sequence: int) -> str:
    """Return the id; `seconds` count from 2021, and each part is cut to its width."""
    return (
        f"01{hardware & 0xFFFFFFFFFFFF:012X}{process & 0xFFFF:04X}"
        f"{seconds & 0xFFFFFFFF:08X}{sequence & 0xFFFFFFFF:08X}"
    )


class MessageIds:
    """Makes ids that differ within this process, and from those of other processes and machines."""

    def __init__(self) -> None:
        """Read the machine's and the process's numbers; a forked child must make its own."""
        self.hardware = uuid.getnode()
        self.process = os.getpid()
        self.started = int(time.time()) - EPOCH_S
        # Two producers in one process share all else: they start at different places of the sequence.
        self.sequence = itertools.count(secrets.randbits(32))

    def next(self) -> str:
        """Return a new id."""
        return pack_message_id(
            hardware=self.hardware,
            process=self.process,
            seconds=self.started,
            sequence=next(self.sequence),
        )


def client_id(host_name: str) -> str:
    """Return a new client id: host, process, and enough randomness for clients within it."""
    return f"{host_name}@{os.getpid()}@{secrets.token_hex(6)}"

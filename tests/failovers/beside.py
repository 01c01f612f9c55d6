"""The same two faults of a leader, for a group of ours and for real RocketMQ 5.3.3 in controller mode.

    python -m failovers.beside --rounds 3

Both groups have three members on this machine, and take a send when more than half of them hold it. A sender
for each member sends one message after the other to it alone, over a connection of its own; who does not lead
refuses, so the pause is that of the group, and not of a client that looks for its leader. RocketMQ: one name
server, one controller, `allAckInSyncStateSet=true`, `minInSyncReplicas=2`, asynchronous flush, by remoting;
ours: majority, `--flush sync`, by gRPC.
"""

import argparse
import itertools
import os
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import electionkit
from failovers.group import Group
from processes import elapse, polls, until
from realbroker import Controller, Remoting, Server, broker, kit, name_server

__all__ = ["Real", "main"]

VERSION = "5.3.3"
NAME = "broker-i"
AGAIN_S = 0.05  # after a refusal, and between two sends
REAL_WAIT_S = 90.0  # for sends to go on; then the fault is ended
IN_STEP_S = 120.0  # for all members to be in the SyncStateSet again
STEADY = 40  # acknowledged sends before a fault
HUNG_S = 12.0  # of ours, which goes on long before

Pauses = dict[str, list[float]]


class Sender:
    """Sends to all members of RocketMQ's group at once."""

    def __init__(self, members: Sequence[Server]) -> None:
        self.times: list[float] = []
        self.taken: dict[int, int] = {}  # by port, how many sends a member has acknowledged
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.send, args=(each,), daemon=True) for each in members]
        for thread in self.threads:
            thread.start()

    def send(self, member: Server) -> None:
        """Send until the end."""
        connection: Remoting | None = None
        for number in itertools.count():
            if self.stopping.wait(AGAIN_S):
                return
            try:
                connection = connection or Remoting(member.address)
                connection.send("t", b"%d-%d" % (member.port, number))
            except AssertionError:
                continue  # it was refused
            except (OSError, struct.error):
                connection = None
            else:
                self.times.append(time.monotonic())
                self.taken[member.port] = self.taken.get(member.port, 0) + 1

    def longest_pause(self, since: float) -> float:
        """Return the longest time without an acknowledged send from then on."""
        times = [since, *(at for at in self.times if at > since), time.monotonic()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def leader(self, members: Sequence[Server]) -> Server:
        """Return who takes sends now."""
        before = dict(self.taken)
        elapse(1.0)
        return max(members, key=lambda each: self.taken.get(each.port, 0) - before.get(each.port, 0))


class Real:
    """RocketMQ's group."""

    def __init__(self, root: Path) -> None:
        self.names = name_server(VERSION, root / "names")
        self.controller = Controller(root / "controller")
        self.root, self.members = root, list[Server]()

    def __enter__(self) -> Self:
        self.names.start()
        self.controller.start()
        self.members = [
            broker(
                VERSION,
                self.root / f"member-{number}",
                "ASYNC_MASTER",
                self.names.address,
                enableControllerMode="true",
                fetchControllerAddrByDnsLookup="false",
                controllerAddr=self.controller.address,
                allAckInSyncStateSet="true",
                minInSyncReplicas=2,
                mappedFileSizeCommitLog=1 << 24,
            )
            for number in range(3)
        ]
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            with suppress(AssertionError, ValueError):
                os.kill(member.pid, signal.SIGCONT)
                member.kill()
        self.controller.kill()
        self.names.kill()

    def in_sync(self) -> int:
        """Return how many members are in the SyncStateSet."""
        with suppress(AssertionError):
            told = kit("admin", VERSION, "getSyncStateSet", "-a", self.controller.address, "-b", NAME)
            return told.count("\nInSyncReplica:") or told.count("InSyncReplica")
        return 0


def real(root: Path, rounds: int, say: Callable[[str], None]) -> Pauses:
    """Measure RocketMQ; a pause as long as `REAL_WAIT_S` was ended with the fault."""
    found: Pauses = {"kill -9": [], "hang": []}
    with Real(root) as group:
        sender = Sender(group.members)
        until(lambda: len(sender.times) >= STEADY, timeout=IN_STEP_S, what="the first sends")
        for kind in [kind for _ in range(rounds) for kind in found]:
            until(lambda: group.in_sync() >= 3, timeout=IN_STEP_S, every_s=2.0, what="all members in sync")
            leader = sender.leader(group.members)
            pid, began = leader.pid, time.monotonic()
            os.kill(pid, signal.SIGKILL if kind == "kill -9" else signal.SIGSTOP)
            for _ in polls(REAL_WAIT_S, every_s=0.1):
                if len([at for at in sender.times if at > began + 1.0]) >= STEADY:
                    break
            pause = sender.longest_pause(began)
            found[kind].append(pause)
            say(f"RocketMQ {VERSION}, {kind}: {pause:.1f} s")
            if kind == "kill -9":
                leader.start()
            else:
                os.kill(pid, signal.SIGCONT)
        sender.stopping.set()
    return found


def ours(root: Path, rounds: int, say: Callable[[str], None]) -> Pauses:
    """Measure a group of ours."""
    found: Pauses = {"kill -9": [], "hang": []}
    with Group(root) as group:
        group.await_in_step()
        with electionkit.loaded(group) as load:
            for kind in [kind for _ in range(rounds) for kind in found]:
                leader = group.await_in_step()
                load.await_count(STEADY)
                began = time.monotonic()
                leader.kill() if kind == "kill -9" else leader.signal(signal.SIGSTOP)
                group.await_leader(leader)
                load.await_count(STEADY)
                pause = load.longest_pause(began)
                found[kind].append(pause)
                say(f"whimbrel, {kind}: {pause:.2f} s")
                elapse(max(0.0, began + (1.0 if kind == "kill -9" else HUNG_S) - time.monotonic()))
                group.mend()
    return found


def main(words: list[str]) -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(description="failover of ours and of RocketMQ")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("ours", "real"))
    given = parser.parse_args(words)
    for name, measure in (("ours", ours), ("real", real)):
        if given.only in (None, name):
            root = Path(tempfile.mkdtemp(prefix="beside-"))
            measure(root, given.rounds, say)
            shutil.rmtree(root)
    return 0


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

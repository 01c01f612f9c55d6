"""Runs the load by the official SDK (`sdk_load.py`), and makes a history of what it noted.

The SDK leaves the choice of the queue to the broker, and its receipt names an offset only: the queue comes
from the complete read, where that has the message at that offset. It tries a send up to three times, and does
not say what earlier tries met: a send that took more than one, or failed, may be stored several times.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from support.cluster.processes import program
from support.history.histories import History, Place
from support.waiting import polls, until
from whimbrel.broker.consume.receipts import ReceiptHandle

__all__ = ["SdkLoad", "note_drain", "note_sends"]

PROGRAM = Path(__file__).resolve().parent / "sdk_load.py"
POLL_S = 0.05


class SdkLoad:
    """The program, and what it has noted so far.

    Args:
        role: "send" with the numbers of threads and of sends a second, or "drain" with a group.
        folder: where notes and log go.

    Attributes:
        topic: that of all messages.
    """

    def __init__(self, role: str, endpoint: str, topic: str, folder: Path, *words: str) -> None:
        self.topic = topic
        name = "-".join((topic, role, *(words if role == "drain" else ())))
        self.file, self.log = folder / f"{name}.notes", folder / f"{name}.log"
        self.lines: dict[str, list[list[str]]] = defaultdict(list)
        self.position = 0
        self.child = program([PROGRAM, role, endpoint, topic, self.file, *words], self.log)

    def notes(self, kind: str) -> list[list[str]]:
        """Return the notes of a kind, each as its words behind the kind."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self.position)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self.position += len(whole)
            for line in whole.decode().splitlines():
                first, *words = line.split(" ")
                self.lines[first].append(words)
        return self.lines[kind]

    def count(self, kind: str = "sent") -> int:
        """Return how many notes of a kind there are."""
        return len(self.notes(kind))

    def sent(self) -> set[str]:
        """Return the bodies of what was acknowledged."""
        return {f"{thread}.{number}" for thread, number, *_ in self.notes("sent")}

    def got(self) -> set[str]:
        """Return the bodies of what was received."""
        return {words[0] for words in self.notes("got")}

    def wait_for(self, more: int, what: str, timeout: float, kind: str = "sent") -> None:
        """Wait for more notes of a kind."""
        wanted = self.count(kind) + more
        until(
            lambda: self.count(kind) >= wanted,
            timeout=timeout,
            what=lambda: f"{what}; {self.count(kind)} {kind}, {self.notes('failed')[-3:]}",
            every_s=POLL_S,
        )

    def wait_for_all(self, bodies: set[str], timeout: float) -> None:
        """Wait until all these were received, or time is over; what is missing then, a check says."""
        for _ in polls(timeout, every_s=POLL_S):
            if bodies <= self.got():
                return

    def end(self) -> None:
        """End the program; a send that is under way ends within the SDK's three tries."""
        self.child.terminate()
        try:
            self.child.wait(30)
        finally:
            self.child.kill()
            self.child.wait()


def note_sends(history: History, load: SdkLoad, complete: Iterable[tuple[Place, bytes]]) -> None:
    """Note what a program has sent; `complete` is all that can be read in the end."""
    where: dict[bytes, list[Place]] = defaultdict(list)
    for place, message in complete:
        where[message].append(place)
    for thread, number, at in load.notes("sending"):
        history.send(f"{thread}.{number}".encode(), f"sdk {thread}", load.topic, float(at))
    for thread, number, at, *_ in load.notes("failed"):
        sent = history.sends[f"{thread}.{number}".encode()]
        sent.ended, sent.tries_unknown = float(at), True
    for thread, number, at, _, offset, tries in load.notes("sent"):
        sent = history.sends[f"{thread}.{number}".encode()]
        sent.outcome, sent.ended, sent.tries_unknown = "ok", float(at), int(tries) > 1
        there = where[sent.id]
        fitting = [place for place in there if place[2] == int(offset)]
        if len(fitting) == 1:
            sent.place = fitting[0]
        elif there and not fitting:
            sent.place = load.topic, -1, int(offset)  # in no queue


def note_drain(history: History, load: SdkLoad, group: str) -> None:
    """Note what a program has received for a group, and acknowledged."""
    for body, at, handle in load.notes("got"):
        history.deliver(group, body.encode(), place_of(handle), float(at))
    for _, at, handle in load.notes("done"):
        history.ack(group, place_of(handle), float(at))


def place_of(text: str) -> Place:
    """Return the place that a receipt handle names."""
    handle = ReceiptHandle.decode(text)
    return f"{handle.broker_name}/{handle.topic}", handle.queue_id, handle.offset

"""A process that dies before any of its appends, at each of them in turn: every transaction ends once.

What a kill in the midst of an append leaves is the store's matter; between two appends it is seen here. The
answers that came before the kill are promises.
"""

import random
from pathlib import Path

import pytest

from support.broker.transactions import FakePositions, TransactionRig
from support.store.stores import NOW
from whimbrel.broker.transactions.table import Resolution
from whimbrel.errors import InvalidTransactionId

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
NAMES = [f"n{number}" for number in range(8)]
WANTED = {name: COMMIT if number % 3 else ROLLBACK for number, name in enumerate(NAMES)}
LEFT = {NAMES[4]}  # the application says nothing about it, and nobody answers for it


class Killed(Exception):
    """The process is gone."""


class Run:
    """One store, its application, and what they were told."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.dice = random.Random(seed)
        self.positions = FakePositions()
        self.now_ms = NOW
        self.sent: set[str] = set()
        self.told: dict[str, Resolution] = {}
        self.appends = 0

    def once(self, kill_at: int) -> bool:
        """Run the process until its work is done, or before its append of that number; return whether it was
        killed."""
        rig = TransactionRig(
            self.root, now_ms=self.now_ms, positions=self.positions, start=False, checks_max=2
        )
        self.appends = 0

        def before() -> None:
            self.appends += 1
            if self.appends == kill_at:
                raise Killed

        rig.appender.before = before
        try:
            rig.transactions.start()
            rig.loop.turn()
            self.work(rig)
        except Killed:
            return True
        finally:
            self.now_ms = rig.now_ms + 1000
            rig.close(clean=False)
        return False

    def work(self, rig: TransactionRig) -> None:
        for name in NAMES:
            if name not in self.sent:
                rig.appender.before()
                rig.half(name, queue_id=self.dice.randrange(2))
                self.sent.add(name)
            if self.dice.random() < 0.5:
                self.decide(rig, self.dice.choice(NAMES))
            if self.dice.random() < 0.4:
                rig.loop.turn()
            if self.dice.random() < 0.2:
                rig.transactions.publish()
        for name in NAMES:
            self.decide(rig, name)
        rig.loop.turn()
        for _ in range(4):
            rig.round(10_000)
        rig.transactions.publish()

    def decide(self, rig: TransactionRig, name: str) -> None:
        if name in LEFT or name not in self.sent or name in self.told:
            return
        try:
            answers = rig.end(name, WANTED[name])
        except InvalidTransactionId:
            return  # decided before the kill, by a call whose answer did not come
        assert answers == [None]
        self.told[name] = WANTED[name]


@pytest.mark.parametrize("seed", range(2))
def test_each_transaction_ends_once_whenever_the_process_dies(tmp_path: Path, seed: int) -> None:
    kill_at = 0
    while True:
        kill_at += 1
        run = Run(tmp_path / f"{kill_at}", seed)
        killed = run.once(kill_at)
        if killed and run.once(run.dice.randrange(1, 20)):  # and again, soon after
            run.once(0)
        rig = TransactionRig(run.root, now_ms=run.now_ms, positions=run.positions)
        wanted = [name for name in NAMES if WANTED[name] is COMMIT and name not in LEFT]
        assert sorted(rig.committed()) == wanted
        assert rig.discarded() == sorted(LEFT)
        assert not rig.transactions.table
        rig.close()
        if not killed:
            break
    assert kill_at > len(NAMES)

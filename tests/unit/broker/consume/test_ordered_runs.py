"""Random consumers of ordered groups against a model that knows nothing of leases, journals and scans.

The model holds the order as lists: for each line (a queue, or a message group in a queue) the offsets that
are not done. Whatever a receive gets of a line must be the first of them, and nothing of that line may be
under way elsewhere, unless the receive repeats the attempt that got it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from support.broker.consumption import Rig
from whimbrel.broker.consume.delivery_planner import Uniform
from whimbrel.broker.consume.grouped_policy import GroupedPolicy
from whimbrel.broker.consume.ordered_policy import OrderedPolicy
from whimbrel.broker.consume.plan import Delivered

QUEUES, GROUPS, STEPS = 2, 4, 250
INVISIBLE_MS = 10_000


@dataclass
class Way:
    """A message under way: until when, and under which attempt id."""

    visible_at: int
    attempt: int
    attempt_id: str
    delivered: Delivered


@dataclass
class Model:
    """What is not done, in order, and what is under way.

    Attributes:
        line_of: names the line of a queue's message by its queue and its group.
    """

    line_of: Callable[[int, int], object]
    undone: dict[object, list[tuple[int, int]]] = field(default_factory=dict)
    lines: dict[tuple[int, int], object] = field(default_factory=dict)
    ways: dict[tuple[int, int], Way] = field(default_factory=dict)

    def sent(self, queue_id: int, offset: int, group: int) -> None:
        line = self.lines[queue_id, offset] = self.line_of(queue_id, group)
        self.undone.setdefault(line, []).append((queue_id, offset))

    def took(self, found: list[Delivered], now: int, attempt_id: str) -> None:
        by_line: dict[object, list[tuple[int, int]]] = {}
        for one in found:
            key = (one.message.queue_id, one.message.queue_offset)
            by_line.setdefault(self.lines[key], []).append(key)
        for line, keys in by_line.items():
            assert keys == self.undone[line][: len(keys)], "out of order, or past a message that is undone"
            for key in self.undone[line]:
                way = self.ways.get(key)
                if way is not None and way.visible_at > now:
                    assert attempt_id and way.attempt_id == attempt_id, "two of a line under way"
        for one in found:
            key = (one.message.queue_id, one.message.queue_offset)
            before = self.ways.get(key)
            repeated = before is not None and attempt_id and before.attempt_id == attempt_id
            expected = 1 if before is None else before.attempt + (not repeated)
            assert one.attempt == expected
            self.ways[key] = Way(now + INVISIBLE_MS, one.attempt, attempt_id, one)

    def done(self, key: tuple[int, int]) -> None:
        del self.ways[key]
        self.undone[self.lines[key]].remove(key)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("policy", [OrderedPolicy, GroupedPolicy])
def test_no_two_of_a_line_are_under_way_out_of_order_and_all_come_in_the_end(
    policy: type[OrderedPolicy], seed: int
) -> None:
    """Checklist 20, 16, 7 and 8, in any mixture."""
    dice = random.Random(seed)
    rig = Rig(policy_of=Uniform(policy))
    by_queue = policy is OrderedPolicy
    model = Model(lambda queue_id, group: queue_id if by_queue else (queue_id, group))
    reached = 0

    def take(attempt_id: str) -> None:
        nonlocal reached
        queue_ids = tuple(dice.sample(range(QUEUES), QUEUES))
        batch = dice.choice((1, 2, 5, 32))
        found = rig.take(batch=batch, queue_ids=queue_ids, invisible_ms=INVISIBLE_MS, attempt_id=attempt_id)
        model.took(found, rig.clock.now, attempt_id)
        reached += len(found)

    def settle() -> None:
        current = [key for key, way in model.ways.items() if way.visible_at > rig.clock.now]
        for key in dice.sample(current, min(len(current), dice.randrange(1, 4))):
            way = model.ways[key]
            if dice.random() < 0.6:
                assert rig.ack(way.delivered) == [None]
                model.done(key)
            else:
                wait_ms = dice.choice((0, 500, 20_000))
                handle = rig.change(way.delivered.handle, wait_ms)
                way.delivered = way.delivered._replace(handle=handle)
                way.visible_at, way.attempt_id = rig.clock.now + wait_ms, ""

    for _ in range(STEPS):
        chance = dice.random()
        if chance < 0.35:
            queue_id, group = dice.randrange(QUEUES), dice.randrange(GROUPS)
            model.sent(queue_id, rig.store.put("t", queue_id, group=f"g{group}"), group)
        elif chance < 0.65:
            take(dice.choice(("", "a", "b", f"c{dice.random()}")))
        elif chance < 0.9:
            settle()
        elif chance < 0.97:
            rig.clock.advance(dice.choice((100, 600, 11_000)))
        else:
            rig.consumption.close()
            rig.start()
    for _ in range(2 * STEPS):
        if not any(model.undone.values()):
            break
        take("")
        for key in [key for key, way in model.ways.items() if way.visible_at > rig.clock.now]:
            rig.ack(model.ways[key].delivered)
            model.done(key)
        rig.clock.advance(1_000)
    assert not any(model.undone.values()), "some never came"
    assert reached >= len(model.lines) > 50

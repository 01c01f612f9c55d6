"""What goes for want of space is counted before it goes, by topic and by group."""

from dataclasses import dataclass, field

from whimbrel.broker.consume.dropped import NAMED_MAX, Dropped, count_messages
from whimbrel.broker.consume.leases import LeaseTable


@dataclass
class Queue:
    """A queue whose records stand at these places."""

    topic: str
    queue_id: int
    places: list[int] = field(default_factory=list)

    def first_from(self, place: int) -> int:
        return sum(one < place for one in self.places)


def test_messages_are_counted_by_topic_and_what_groups_have_not_finished() -> None:
    orders, more = Queue("orders", 0, [0, 10, 20, 30, 40]), Queue("orders", 1, [5, 15, 200])
    idle, internal = Queue("idle", 0, [300]), Queue("SCHEDULE_TOPIC_XXXX", 3, [1, 2, 3])
    table = LeaseTable(origin=1)
    for group, done in (("half", (0, 2)), ("ahead", (0, 5)), ("holes", (3, 4))):
        table.state(group, "orders", 0).finish(*done)
    table.state("holes", "orders", 1).finish(0, 1)
    table.state("elsewhere", "idle", 0).finish(0, 0)
    found = count_messages([orders, more, idle, internal], table, 10, 100)
    assert found.topics == (("orders", 5),), "4 of queue 0 and 1 of queue 1"
    # Below 100 and from 10 on: offsets 1 to 4 of queue 0, offset 1 of queue 1.
    assert dict(found.unread) == {("half", "orders"): 3, ("holes", "orders"): 3 + 1}
    assert (found.messages, found.unread_messages) == (5, 7)
    assert count_messages([orders], table, 50, 100) == Dropped()


def test_a_group_that_rests_is_counted_as_well() -> None:
    queue, table = Queue("orders", 0, [0, 10, 20]), LeaseTable(origin=1)
    state = table.state("g", "orders", 0)
    state.finish(0, 1)
    table.rest([state])
    assert count_messages([queue], table, 0, 15).unread == ((("g", "orders"), 1),)
    assert not table.by_queue, "it rests still"


def test_it_is_said_in_one_sentence_with_the_first_names() -> None:
    assert str(Dropped()) == "0 messages"
    one = Dropped((("orders", 3),), ((("g", "orders"), 2),))
    assert str(one) == "3 messages (3 of orders), not finished 2 of orders by g"
    assert str(one + one) == "6 messages (6 of orders), not finished 4 of orders by g"
    many = Dropped(tuple((f"t{number}", 1) for number in range(NAMED_MAX + 2)))
    assert str(many).endswith(f"1 of t{NAMED_MAX - 1} and 2 more)")

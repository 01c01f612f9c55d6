"""What of a message's deliveries must not have happened (`tests/support/history/kinds.py`)."""

from support.history.kinds import INVISIBLE_S, Note

HERE, THERE = (0, 7), (0, 8)


def test_a_message_does_not_come_again_before_its_invisible_time_is_over() -> None:
    note = Note()
    assert note.delivered(HERE, 1, asked=100.0, answered=101.0) == ""
    assert "0.5 s before" in note.delivered(HERE, 2, asked=100.0, answered=100.0 + INVISIBLE_S - 0.5)
    assert note.deliveries == [1, 2]


def test_how_long_a_receive_took_is_forgiven_and_nothing_else() -> None:
    """It may have been delivered when the receive was sent, and again when the next one was answered."""
    note = Note()
    assert note.delivered(HERE, 1, asked=100.0, answered=105.0) == ""
    assert note.delivered(HERE, 2, asked=100.0 + INVISIBLE_S - 1, answered=100.0 + INVISIBLE_S) == ""
    assert "before its invisible time" in note.delivered(
        HERE, 3, asked=0.0, answered=100.0 + 2 * INVISIBLE_S - 1.1
    )


def test_what_was_acknowledged_does_not_come_again() -> None:
    note = Note()
    note.delivered(HERE, 1, asked=100.0, answered=100.0)
    note.done.add(HERE)
    assert note.delivered(HERE, 2, asked=500.0, answered=500.0) == "came again after its acknowledgement"


def test_a_second_copy_is_a_message_of_its_own() -> None:
    """Its producer has sent it twice, for want of an answer."""
    note = Note()
    note.delivered(HERE, 1, asked=100.0, answered=100.0)
    note.done.add(HERE)
    assert note.delivered(THERE, 1, asked=101.0, answered=101.0) == ""

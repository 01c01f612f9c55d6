"""What the official SDK's program has noted becomes a history."""

from collections import defaultdict
from pathlib import Path

from support.history.histories import History, Place
from support.history.sdk_notes import SdkLoad, note_drain, note_sends
from whimbrel.broker.consume.receipts import ReceiptHandle

TOPIC = "orders"


class Noted(SdkLoad):
    """A program that has run, and left these lines."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.topic, self.file = TOPIC, folder / "notes"
        self.lines, self.position = defaultdict(list), 0
        self.file.write_text("".join(f"{line}\n" for line in lines))


def at(queue: int, offset: int) -> Place:
    return f"broker-a/{TOPIC}", queue, offset


def handle(queue: int, offset: int) -> str:
    return ReceiptHandle("broker-a", "g", TOPIC, queue, 0, offset, 0, 100, 1, 1).encode()


def test_a_send_has_the_outcome_and_the_times_that_were_noted(tmp_path: Path) -> None:
    history = History()
    note_sends(
        history,
        Noted(
            tmp_path,
            "sending 0 1 1.5",
            "sent 0 1 2.5 01AB 7 1",
            "sending 0 2 3.0",
            "failed 0 2 4.0 Error: what it says",
            "sending 0 3 5.0",
            "sent 0 3 6.0 01AC 8 2",
            "sending 0 4 7.0",
        ),
        [],
    )
    noted = [(s.id, s.began, s.ended, s.outcome, s.tries_unknown) for s in history.sends.values()]
    assert noted == [
        (b"0.1", 1.5, 2.5, "ok", False),
        (b"0.2", 3.0, 4.0, "unknown", True),
        (b"0.3", 5.0, 6.0, "ok", True),
        (b"0.4", 7.0, float("inf"), "unknown", False),
    ]


def test_the_queue_of_a_receipt_comes_from_the_complete_read(tmp_path: Path) -> None:
    history = History()
    load = Noted(tmp_path, "sending 0 1 1.0", "sent 0 1 2.0 01AB 7 2")
    complete = [(at(3, 7), b"0.1"), (at(2, 6), b"0.1")]
    note_sends(history, load, complete)
    assert history.sends[b"0.1"].place == at(3, 7)
    assert history.check(complete=complete) == []


def test_a_receipt_that_names_another_offset_is_a_finding(tmp_path: Path) -> None:
    history = History()
    complete = [(at(3, 8), b"0.1")]
    note_sends(history, Noted(tmp_path, "sending 0 1 1.0", "sent 0 1 2.0 01AB 7 1"), complete)
    assert [finding.kind for finding in history.check(complete=complete)] == ["moved"]


def test_two_copies_are_a_finding_where_the_only_try_was_answered(tmp_path: Path) -> None:
    complete = [(at(3, 7), b"0.1"), (at(2, 6), b"0.1")]
    for tries, found in ((1, ["duplicate"]), (2, [])):
        history = History()
        lines = ("sending 0 1 1.0", f"sent 0 1 2.0 01AB 7 {tries}")
        note_sends(history, Noted(tmp_path, *lines), complete)
        assert [finding.kind for finding in history.check(complete=complete)] == found


def test_deliveries_and_acknowledgements_have_the_places_of_their_handles(tmp_path: Path) -> None:
    history = History()
    lines = (f"got 0.1 2.0 {handle(3, 7)}", f"done 0.1 2.5 {handle(3, 7)}", f"got 0.2 3.0 {handle(3, 8)}")
    note_drain(history, Noted(tmp_path, *lines), "g")
    assert [(d.id, d.place, d.at) for d in history.deliveries] == [
        (b"0.1", at(3, 7), 2.0),
        (b"0.2", at(3, 8), 3.0),
    ]
    assert dict(history.acked) == {("g", at(3, 7)): [2.5]}


def test_half_a_line_waits_for_its_rest(tmp_path: Path) -> None:
    load = Noted(tmp_path, "sending 0 1 1.0")
    with load.file.open("a") as file:
        file.write("sent 0 1 2.0 01A")
        file.flush()
        assert load.count() == 0
        file.write("B 7 1\n")
    assert load.notes("sent") == [["0", "1", "2.0", "01AB", "7", "1"]]
    assert load.sent() == {"0.1"}

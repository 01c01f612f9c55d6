"""A deferred that follows another one: it is settled as that is, and who leaves it leaves that."""

import pytest

from whimbrel.deferred import Deferred


@pytest.mark.parametrize("early", [True, False])
def test_it_is_settled_as_the_other(early: bool) -> None:
    for error in (None, ValueError("x")):
        first, second = Deferred[int](), Deferred[int]()
        woken: list[int] = []
        second.waker = lambda woken=woken: woken.append(1)
        if not early:
            second.follow(first)
        if error is None:
            first.complete(7)
        else:
            first.fail(error)
        if early:
            second.follow(first)
        assert (second.done, second.error, second.result) == (True, error, None if error else 7)
        assert woken == [1]


def test_who_leaves_it_leaves_the_other() -> None:
    first, second = Deferred[int](), Deferred[int]()
    left: list[int] = []
    first.on_cancel = lambda: left.append(1)
    second.follow(first)
    second.cancel()
    assert left == [1] and first.cancelled
    assert not first.complete(7) and not second.done


def test_it_is_settled_by_an_error_or_none() -> None:
    failed: Deferred[str] = Deferred()
    failed.settle("done", ValueError("late"))
    assert isinstance(failed.error, ValueError) and failed.result is None
    completed: Deferred[str] = Deferred()
    completed.settle("done", None)
    assert (completed.result, completed.error) == ("done", None)

"""What is counted on the way, and the trail of a mark."""

import pytest

from whimbrel.metrics import OTHER, Histogram, Series, Traffic, Trail, bounded


def test_value_at_a_bound_belongs_to_its_bucket_and_one_above_all_to_the_last() -> None:
    histogram = Histogram((1.0, 5.0))
    for value in (0.5, 1.0, 1.1, 5.0, 5.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.count == 5
    assert histogram.total == pytest.approx(12.7)


def test_aggregates_of_further_labels_share_one_beyond_the_bound() -> None:
    series = Series(Traffic, series_max=2)
    for topic in ("a", "b", "c", "d", "a"):
        series.at((topic, "g")).add(1, 10)
    found = {labels: (one.messages, one.bytes) for labels, one in series.items()}
    assert found == {("a", "g"): (2, 20), ("b", "g"): (1, 10), (OTHER, OTHER): (2, 20)}


def test_points_beyond_the_bound_are_added_up() -> None:
    points = [(("g", str(number)), number) for number in range(5)]
    assert list(bounded(points, series_max=2)) == [(("g", "0"), 0), (("g", "1"), 1), ((OTHER, OTHER), 9)]
    assert list(bounded(points, series_max=5)) == points
    assert list(bounded([])) == []


def trail(*samples: tuple[int, float]) -> Trail:
    made = Trail()
    for offset, now in samples:
        made.note(offset, now)
    return made


def test_trail_tells_when_an_offset_was_first_reached() -> None:
    made = trail((100, 0.0), (200, 1.0), (300, 2.0))
    assert [made.reached(offset) for offset in (101, 200, 201, 300)] == [1.0, 1.0, 2.0, 2.0]


def test_trail_does_not_know_what_was_there_before_or_is_not_there_yet() -> None:
    made = trail((100, 0.0), (200, 1.0))
    assert made.reached(100) is None
    assert made.reached(201) is None
    assert Trail().reached(0) is None


def test_moves_within_one_sample_are_told_too_old_never_too_young() -> None:
    made = trail((0, 0.0), (10, 1.0), (20, 1.0 + Trail.FINE_S / 2), (30, 1.0 + Trail.FINE_S * 1.5))
    assert made.reached(20) == 1.0
    assert made.reached(30) == 1.0 + Trail.FINE_S * 1.5


def test_age_counts_from_when_the_mark_went_beyond_an_offset() -> None:
    made = trail((100, 0.0), (200, 1.0), (300, 2.0))
    assert made.age(300, 5.0) == 0.0
    assert made.age(250, 5.0) == 3.0
    assert made.age(200, 5.0) == 3.0
    assert made.age(199, 5.0) == 4.0


def test_age_of_what_was_beyond_before_the_trail_began_is_that_of_the_trail() -> None:
    assert trail((100, 1.0)).age(50, 5.0) == 4.0
    assert trail((100, 1.0), (200, 3.0)).age(50, 5.0) == 4.0
    assert Trail().age(0, 5.0) == 0.0


def test_mark_that_goes_back_starts_the_trail_anew() -> None:
    made = trail((100, 0.0), (200, 1.0), (150, 2.0), (250, 3.0))
    assert made.reached(150) is None
    assert made.reached(200) == 3.0
    assert made.age(250, 9.0) == 0.0


def test_mark_that_stands_still_adds_nothing() -> None:
    made = trail((100, 0.0), *((100, float(second)) for second in range(1, 50)))
    assert len(made.fine) == len(made.coarse) == 1


def test_trail_keeps_recent_moves_exactly_and_old_ones_by_the_second_within_a_bound() -> None:
    made = Trail()
    for number in range(500_000):  # each 10 ms, for 83 minutes
        made.note(number, number / 100)
    assert len(made.fine) < 2 * Trail.FINE_MAX
    assert len(made.coarse) < 2 * Trail.COARSE_MAX
    assert made.reached(499_000) == 4990.0
    for offset in (400_000, 300_050, 200_099):
        at = made.reached(offset)
        assert at is not None
        assert offset / 100 - Trail.COARSE_S <= at <= offset / 100

"""How long acknowledgements take."""

from whimbrel.replicator.metrics import AckTimes


def test_acknowledgement_takes_from_the_write_to_the_report() -> None:
    times = AckTimes()
    times.written(0, 0.0)
    times.written(100, 1.0)
    times.written(200, 2.0)
    times.acknowledged(100, 1.5)
    times.acknowledged(200, 2.25)
    assert (times.latency.count, times.latency.total) == (2, 0.75)


def test_report_about_what_was_there_before_does_not_count() -> None:
    times = AckTimes()
    times.written(100, 0.0)
    times.acknowledged(100, 5.0)
    times.acknowledged(50, 5.0)
    assert times.latency.count == 0

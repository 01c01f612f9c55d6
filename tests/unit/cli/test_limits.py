"""Which side was the limit: whoever wanted a core all the time."""

import pytest

from whimbrel.cli.limits import Use, limit_of, use_of


def use(cpu_s: float, waited_s: float = 0.0, processes: int = 1) -> Use:
    return Use(cpu_s=cpu_s, waited_s=waited_s, processes=processes)


@pytest.mark.parametrize(
    ("client", "broker", "limit"),
    [
        (use(6.2), use(19.6), "broker"),
        (use(6.2), use(10, 8), "broker"),
        (use(19.8), use(9), "client"),
        (use(38, processes=2), use(9), "client"),
        (use(30, processes=2), use(9), "neither"),
        (use(17.1), use(17.1), "both"),
        (use(16.5), use(39, processes=2), "broker"),
        (use(32, processes=4), use(38, processes=3), "machine"),
        (use(22, 10, processes=4), use(28, 10, processes=3), "machine"),
        (use(2), use(3), "neither"),
        (use(19), None, "client"),
        (use(2), None, "unknown"),
        (None, use(19), "unknown"),
    ],
)
def test_the_limit_is_who_wanted_a_core_all_the_time(
    client: Use | None, broker: Use | None, limit: str
) -> None:
    assert limit_of(client, broker, seconds=20.0, cores=4)[0] == limit


def test_the_verdict_says_what_both_used() -> None:
    def text(client: Use, broker: Use | None) -> str:
        return limit_of(client, broker, seconds=20.0, cores=4)[1]

    assert text(use(6.2), use(19.6)) == (
        "the broker was the limit: it used 0.98 of a core, this client 0.31 of a core"
    )
    assert text(use(6.2), use(39, processes=2)) == (
        "the brokers were the limit: they used 1.95 of 2 cores, this client 0.31 of a core"
    )
    assert text(use(12, 7), use(1)) == (
        "this client was the limit: it used 0.60 of a core (and wanted 0.35 more that others had),"
        " the broker 0.05 of a core"
    )
    assert text(use(2), None).endswith("what the broker used can't be seen from here")


def test_a_short_run_tells_nothing() -> None:
    limit, text = limit_of(use(0.1), use(0.4), seconds=0.4, cores=2)
    assert (limit, text) == ("unknown", "which side was the limit is not known: 0.40 s are too short to tell")


def test_a_process_has_used_what_its_threads_have_and_waited_as_its_busiest_has() -> None:
    before = {7: {7: (1_000_000_000, 5), 8: (0, 0), 10: (9, 9)}}
    after = {7: {7: (3_000_000_000, 500_000_005), 8: (500_000_000, 10**10), 9: (250_000_000, 0)}}
    assert use_of(before, after) == use(2.75, 0.5)
    both = use_of(before | {5: {}}, after | {5: {5: (10**9, 10**9)}})
    assert both == use(3.75, 1.5, processes=2)
    assert use_of(before, None) is None
    assert use_of({}, {}) is None
    assert use_of(before, {}) is None

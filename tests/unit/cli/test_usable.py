"""Why a cluster takes no messages."""

import pytest

from whimbrel.cli.usable import lacking
from whimbrel.model.cluster import BrokerStatus, Cluster


def broker(broker_id: int, *, writable: bool = False) -> BrokerStatus:
    return BrokerStatus(
        cluster="C",
        broker_name="a",
        broker_id=broker_id,
        role="slave" if broker_id else "master",
        address="127.0.0.1:1",
        ha_address="",
        log_begin=0,
        log_end=0,
        writable=writable,
        topic_count=0,
        renewed_at=0.0,
    )


@pytest.mark.parametrize(
    ("brokers", "settled", "lack"),
    [
        ((broker(0, writable=True), broker(1)), True, ""),
        ((broker(0, writable=True), broker(1)), False, "the nameserver is not settled yet"),
        ((broker(0, writable=True),), True, "1 of 2 brokers are registered"),
        ((broker(0), broker(1)), True, "the master takes no messages"),
    ],
)
def test_the_first_thing_that_is_lacking_is_said(
    brokers: tuple[BrokerStatus, ...], settled: bool, lack: str
) -> None:
    said = lacking(Cluster(brokers, settled), 2)
    assert said.startswith(lack)
    assert bool(said) == bool(lack)

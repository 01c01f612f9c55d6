"""Where slaves dial the replicator of a master, and who may register."""

from typing import Any

import pytest

from whimbrel.errors import BadRequest
from whimbrel.model.registration import check_broker, replicator_host


@pytest.mark.parametrize(
    ("announced", "ours", "host"),
    [
        pytest.param("127.0.0.1", "127.0.0.1", "127.0.0.1", id="laptop"),
        pytest.param("replicator-master", "0.0.0.0", "replicator-master", id="another-container"),
        pytest.param("10.0.0.7", "0.0.0.0", "10.0.0.7", id="another-machine"),
        pytest.param("127.0.0.1", "0.0.0.0", "127.0.0.1", id="listens-on-loopback-only"),
        pytest.param("host-a", "0.0.0.0", "0.0.0.0", id="neighbour-the-nameserver-knows-where"),
        pytest.param("host-a", "10.0.0.1", "10.0.0.1", id="neighbour-of-a-broker-with-an-address"),
        pytest.param("", "10.0.0.1", "10.0.0.1", id="says-nothing"),
    ],
)
def test_replicator_is_dialled_where_it_says_unless_it_is_our_neighbour(
    announced: str, ours: str, host: str
) -> None:
    assert replicator_host(announced, own_name="host-a", ours=ours) == host


MEMBER: dict[str, Any] = {
    "cluster": "C",
    "name": "b",
    "broker_id": 0,
    "master": True,
    "port": 8091,
    "ha_address": "",
    "hosts": {},
    "instance": "",
    "epoch": 7,
    "member_id": 2,
    "voters": 3,
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"epoch": -1}, "epoch"),
        ({"epoch": 2**31}, "epoch"),
        ({"member_id": -1}, "member_id"),
        ({"member_id": 64}, "member_id"),
        ({"voters": -1}, "voters"),
        ({"voters": 8}, "voters"),
        ({"member_id": 0}, "member_id"),
    ],
)
def test_a_member_that_no_group_can_have_is_refused(changed: dict[str, Any], said: str) -> None:
    check_broker(**MEMBER)
    check_broker(**MEMBER | {"epoch": 0, "member_id": 0, "voters": 0})  # of a fixed pair
    with pytest.raises(BadRequest, match=said):
        check_broker(**MEMBER | changed)

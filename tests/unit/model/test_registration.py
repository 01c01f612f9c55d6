"""Where slaves dial the replicator of a master."""

import pytest

from whimbrel.model.registration import replicator_host


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

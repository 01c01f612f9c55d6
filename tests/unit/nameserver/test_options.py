"""Settings of a nameserver that can't work together."""

import pytest

from whimbrel.nameserver.options import NameserverOptions


def test_a_port_for_rocketmq_is_another_one() -> None:
    with pytest.raises(ValueError, match="remoting_port: RocketMQ's protocol is served on port anyway"):
        NameserverOptions(port=9876, remoting_port=9876)
    assert NameserverOptions(port=0, remoting_port=0).remoting_port == 0

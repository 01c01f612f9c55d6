"""Settings of a nameserver that can't work together."""

from dataclasses import replace

import pytest

from whimbrel.nameserver.options import NameserverOptions

NATIVE = NameserverOptions(transport="native")


def test_a_port_for_rocketmq_needs_the_transport_that_speaks_its_protocol() -> None:
    with pytest.raises(
        ValueError, match=r"remoting_port: only the transport native .*set transport to native"
    ):
        replace(NATIVE, transport="grpcio", remoting_port=9876)
    assert replace(NATIVE, transport="grpcio").remoting_port == -1


def test_a_port_for_rocketmq_is_another_one() -> None:
    with pytest.raises(ValueError, match="remoting_port: RocketMQ's protocol is served on port anyway"):
        replace(NATIVE, port=9876, remoting_port=9876)
    assert replace(NATIVE, port=0, remoting_port=0).remoting_port == 0

"""A leader that hands over: it waits for the sends that wait, as long as its role lasts."""

from pathlib import Path

from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.roles.master import MasterRole


class EndingAppender:
    """Of a role that ends while one waits: it can't be looked at any more then."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.looks = broker, 0

    @property
    def unfinished(self) -> bool:
        assert self.broker.role is not None, "the page of this role is closed"
        self.looks += 1
        if self.looks == 3:
            self.broker.role = None
        return True


async def test_the_wait_ends_with_the_role(tmp_path: Path) -> None:
    broker = Broker(BrokerOptions(store=str(tmp_path)))
    role = MasterRole.__new__(MasterRole)
    appender = EndingAppender(broker)
    role.__dict__.update(appender=appender, refuse_writes=lambda why: None)
    broker.role = role
    broker.__dict__["context"] = type("Context", (), {"leader_calls": None})()
    await broker.drain()
    assert appender.looks == 3

"""Brokers as a nameserver shows them, for tests in memory."""

from typing import Any

from whimbrel.model.cluster import BrokerStatus

__all__ = ["registered"]


def registered(broker_id: int = 0, name: str = "broker-a", **fields: Any) -> BrokerStatus:
    """Return a broker that is registered: 0 is a master, others are slaves. `fields`: what is otherwise."""
    usual: dict[str, Any] = {
        "cluster": "c", "role": "slave" if broker_id else "master",
        "address": f"10.0.0.{broker_id + 1}:10911", "ha_address": "", "log_begin": 0, "log_end": 0,
        "writable": not broker_id, "renewed_at": None, "topic_count": 0,
    }  # fmt: skip
    return BrokerStatus(broker_name=name, broker_id=broker_id, **usual | fields)

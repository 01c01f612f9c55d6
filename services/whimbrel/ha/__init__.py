"""RocketMQ's replication protocols as values: bytes in, events out; no socket, no clock, no disk."""

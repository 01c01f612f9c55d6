"""RocketMQ's classic replication protocol as values: bytes in, events out; no socket, no clock, no disk."""

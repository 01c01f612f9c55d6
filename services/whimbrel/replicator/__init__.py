"""The replicator: RocketMQ's HA protocol over TCP, in a process of its own beside each broker.

`program.py` is the process, `replicator.py` holds its role and can change it, `roles.py` has the two roles.
`feeder.py` and `slave_connection.py` send a master's log, `follower.py` with `buffers.py` receives it at a
slave, and `loop.py` is the blocking loop under both. What is sent and when is decided in `whimbrel.ha`; who
writes what in the store directory stands in `docs/design.md`.
"""

"""The replicator: RocketMQ's HA protocol over TCP, in a process of its own beside each broker.

`feeder.py` and `slave_connection.py` send a master's log, `follower.py` receives it at a slave, `loop.py` is
the blocking loop under both, `program.py` the process. What is sent and when is decided in `whimbrel.ha`; who
writes what in the store directory stands in `docs/design.md`.
"""

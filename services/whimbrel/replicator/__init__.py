"""The replicator: RocketMQ's HA protocol over TCP, in a process of its own beside each broker.

`feeder.py` and `link.py` are a master's (the log goes out), `follower.py` a slave's (the log comes in),
`loop.py` is the blocking loop under both, `program.py` the process. What is sent and when is decided in
`whimbrel.ha`; who writes what in the store directory stands in `docs/design.md`.
"""

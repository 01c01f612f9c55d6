"""A message broker that speaks RocketMQ 5's client API and keeps its store and replication formats."""

__version__ = "0.2.0.dev0"

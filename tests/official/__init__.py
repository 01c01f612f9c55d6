"""RocketMQ 4.9.3's own integration tests, run against ours and against real servers: `run.py`."""

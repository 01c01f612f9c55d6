"""Failovers of a group that elects its leader, one after the other, under load: `run.py`."""

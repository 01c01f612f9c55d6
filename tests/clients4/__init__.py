"""Scenarios of 4.x clients, whose outcomes at real servers and at ours are compared: `run.py`."""

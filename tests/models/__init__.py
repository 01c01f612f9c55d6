"""Models of automatic failover and majority commit: its rules, every small case, and random histories."""

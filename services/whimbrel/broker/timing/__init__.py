"""Delayed messages: from the timer topic into slots, out of them when they are due, and recalls."""

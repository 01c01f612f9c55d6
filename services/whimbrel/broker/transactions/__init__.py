"""Transactions: halves, their decisions, and the questions to producers about those without one."""

"""Runtimes: how an agent has attempts started. They know commands and attempts, no jobs."""

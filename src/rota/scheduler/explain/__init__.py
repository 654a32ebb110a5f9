"""Explanations: why a job waits, what would help, and when it is expected to start."""

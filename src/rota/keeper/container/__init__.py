"""Attempts in containers: command lines of the runtime, mounts, and removal."""

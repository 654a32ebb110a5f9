"""Processes of attempts: spawning, process trees, users and pid namespaces."""

"""Providers: how machines are created, listed and removed. They know nothing of tasks."""

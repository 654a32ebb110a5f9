"""Rollouts: replacement of running attempts by a newer version, its health gate, and rollback."""

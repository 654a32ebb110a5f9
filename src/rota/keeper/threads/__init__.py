"""Threads of the keeper: socket server, sweeper, health checker, output trimmer."""

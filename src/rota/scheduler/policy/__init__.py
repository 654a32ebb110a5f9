"""Scheduling policies: backfill, preemption, drain, deadlines, moves, system jobs, failed nodes."""

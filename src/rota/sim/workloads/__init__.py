"""Workload files and recorded traces -> jobs in order of time; results -> figures and plots."""

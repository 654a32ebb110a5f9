"""Limits of attempts: enforced by cgroups where there are any, otherwise by polling."""

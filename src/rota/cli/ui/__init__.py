"""Shared by commands: arguments, tables, progress and output."""

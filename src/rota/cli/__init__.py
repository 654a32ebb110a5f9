"""The command line: one file or package per command; uses the client, and the wiring to start processes."""

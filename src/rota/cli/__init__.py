"""WHAT A USER MAY TYPE. One file per command; knows the client, and the wiring to start a process."""

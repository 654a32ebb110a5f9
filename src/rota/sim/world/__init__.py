"""The simulated world: virtual time, network, store, and event loops in virtual time."""

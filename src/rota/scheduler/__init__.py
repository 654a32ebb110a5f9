"""The scheduler: which task runs where, and why not. Knows shapes and free resources, no agents."""

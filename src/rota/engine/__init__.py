"""HOW DECIDING IS RUN. Knows keys and plans, no component by name."""

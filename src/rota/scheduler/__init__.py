"""WHICH TASK RUNS WHERE. Knows shapes and room, no agents."""

"""HOW MANY MACHINES, IN WHICH CLUSTER. Knows demand, no cloud."""

"""WORK IN CONTAINERS: the command line of the runtime, what surrounds it, and who clears it away."""

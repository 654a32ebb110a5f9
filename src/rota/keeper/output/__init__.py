"""Output of attempts: segments that they append to, the index, arrival times and caps."""

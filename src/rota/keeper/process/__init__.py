"""WHOSE PROCESSES ARE WHOSE: the trees of the work, and the users it runs as."""

"""HOW WORK BECOMES A PROCESS: its start, its user, its tree."""

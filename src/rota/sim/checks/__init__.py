"""The invariants of a cluster, checked at each commit, start, end and answer, and once at the end."""

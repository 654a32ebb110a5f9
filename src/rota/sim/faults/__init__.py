"""Everything that can go wrong in a simulated cluster, and when it does."""

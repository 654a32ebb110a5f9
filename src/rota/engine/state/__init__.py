"""The mirror: the cluster in memory, its tables, indexes and aggregates."""

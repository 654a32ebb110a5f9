"""WORKERS WRITTEN BY OTHERS. Each is dialled, and stands in the cluster as a node."""

"""Placement of tasks: filters, scores and affinity rules, and the choice of a node for each task."""

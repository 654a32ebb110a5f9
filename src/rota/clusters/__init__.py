"""Clusters: assignment of jobs, scaling, machines and calls of providers. Knows demand, no cloud."""

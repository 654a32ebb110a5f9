"""WHAT USERS MAY ASK. Decides nothing about the cluster."""

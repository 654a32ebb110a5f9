"""What attempts leave on this node: logs, their tails, output files and results."""

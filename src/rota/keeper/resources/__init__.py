"""Resources of the node: reservations of attempts and allocation of GPUs."""

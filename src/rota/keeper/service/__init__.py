"""Services: restart policy, health checks and their state."""

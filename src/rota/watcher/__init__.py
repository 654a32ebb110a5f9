"""The state of nodes and attempts: sessions, reports, orders, liveness."""

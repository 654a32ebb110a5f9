"""What clients follow: committed events by cursor, and the output of tasks. Knows neither HTTP nor gRPC."""

"""WHERE RECORDS ARE KEPT. Knows keys and bytes, no rules of the domain."""

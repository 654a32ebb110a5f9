"""WHO IS WHO. The cluster's CA, join tokens, API tokens, audit log."""

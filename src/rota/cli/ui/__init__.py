"""How commands read arguments and show tables, progress and output."""

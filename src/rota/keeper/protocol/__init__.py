"""Messages between agent and keeper: orders in, events and state out."""

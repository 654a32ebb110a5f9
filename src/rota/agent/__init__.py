"""The agent: one node's connection to the control plane. It knows its own assignment only."""

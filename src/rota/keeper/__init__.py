"""The keeper: owns the attempts of a node, and keeps their results until the server has stored them."""

"""HOW NODES AND ATTEMPTS FARE. Knows reports and silence."""

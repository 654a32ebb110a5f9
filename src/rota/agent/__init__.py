"""ONE MACHINE'S PART. Knows its assignment only."""

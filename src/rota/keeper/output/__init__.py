"""WHERE OUTPUT GOES: files that the work itself appends to, kept within bounds."""

"""A WHOLE CLUSTER IN ONE THREAD, WITH FAULTS. Another driver of the same loop."""

"""WHAT EXISTS. Frozen data and the state tables; knows nothing else of ours."""

"""The decision engine. It knows keys, records and plans, and no component by name.

Read in this order: `reconciler` (what a component provides), `loop` (one batch of decisions, sans-I/O, with
the theory of operation), `run` (the driver that commits and answers, with what must be durable before what),
`state.mirror` (the cluster in memory), `parking` (what happens after an internal fault).
"""

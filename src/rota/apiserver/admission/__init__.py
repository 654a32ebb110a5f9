"""Admission: a request + the view -> a Plan, or a refusal that names the field.

Every function here is pure. The engine calls it in its loop, so that the view cannot change between the check
and the write: there is no race between two requests. The client gets its answer when the plan is durable.

Three rules hold in all modules:

- **A request can be repeated.** Its answer may be lost, and the client then sends it again. A request whose
  effect is there already writes nothing and succeeds. Where a repeat could hit something newer, such as the
  next attempt of a task, the record names the attempt number, or the client sends an idempotency key.
- **A plan without a write is fenced** if its answer depends on the view. A deposed leader has a stale view,
  and would confirm what the new leader has changed since. `fenced=True` delays the answer until a commit has
  shown that this server still leads.
- **An action is stored as an intent.** Its effect, such as stopping a task or draining a node, is decided by
  reconcilers.
"""

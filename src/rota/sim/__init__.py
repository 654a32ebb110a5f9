"""A whole cluster in one thread and in virtual time, with faults drawn from a seed.

The simulator is another driver of the production code: the loop, every reconciler, admission, the agent's
attempt tracker and the keeper's supervisor are the real ones. Only what touches the world is replaced.

Layers, each importing only those before it:

    world       virtual time, processes, network, store, coroutines
    workloads   what jobs arrive, from a file or a trace; figures and plots of a run
    cluster     agents, keepers, servers, users, subscribers and a provider of machines
    checks      the invariants, and what is known to be on disk
    simulation  SimCluster: all of the above, wired together
    faults      what can go wrong in a SimCluster
    seeds       what a seed draws besides plain batch jobs
    scenario    a seed -> a scenario -> a run -> a finding; also memory_scenario, replay, shrink, report

Runs are deterministic: every random choice comes from a generator seeded with the seed and a name, and no
code here reads a clock or iterates over a set in an order that depends on hashing.
"""

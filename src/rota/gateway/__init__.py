"""The worker gateway: workers written by others, each dialled by the server and shown as a node.

A worker implements the contract of `jobscheduler.proto` and knows nothing of Rota. A ProxyNode acts as its
agent: it takes part in a session like any other node, and turns orders into calls to the worker.
"""

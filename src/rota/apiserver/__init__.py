"""The API server: authenticates callers, admits their requests as plans, and shows the cluster.

It decides nothing about the cluster. HTTP is in `http` and `routes`, gRPC for outside controllers in `grpc`;
both admit by the same functions of `admission`.
"""

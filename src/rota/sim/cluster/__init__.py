"""The simulated processes of a cluster: machines, servers, users, a provider of machines."""

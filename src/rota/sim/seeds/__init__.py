"""What a seed draws besides plain batch jobs: services, crons, placement rules, leases, rollouts."""

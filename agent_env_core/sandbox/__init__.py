"""The provider contract and everything the core does around it: leases, limits, reaping."""

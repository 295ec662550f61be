"""The same faults for ours and for its peers: what readers of the targets miss, or see twice, counted by id."""

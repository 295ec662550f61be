"""The protocol: an epoch's plan, votes, decision and commit, the sweep, and the journal that decides."""

"""The coordinator's append-only log: the decision record in it is THE commit point."""

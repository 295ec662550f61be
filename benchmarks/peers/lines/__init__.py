"""The lines of the table, a module each: ours, its peers, and the bounds."""

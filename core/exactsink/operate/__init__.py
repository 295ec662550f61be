"""What an operator sees (views only read) and does (actions claim first)."""

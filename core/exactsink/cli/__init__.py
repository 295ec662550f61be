"""The command line: every command is a plain function."""

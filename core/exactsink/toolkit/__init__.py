"""What backends share, ours and others': each would else write it anew. A plugin may import it, beside the contract."""

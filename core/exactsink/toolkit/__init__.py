"""What all backends share, so that none writes it again. A plugin may import it, beside the contract."""

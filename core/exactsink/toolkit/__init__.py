"""Code that all backends share, so that none of them writes it again. A plugin may import it, beside the contract."""

"""Code that all backends share, so that none of them writes it again.

A plugin may import `roads`, `storage` and `local_paths`. The other modules may change in any release.
"""

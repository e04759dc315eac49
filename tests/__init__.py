"""The test suite. Folders mirror packages; what tests share is in `tests.support`."""

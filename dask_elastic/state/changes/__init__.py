"""Changes that user code makes to the state of one key: which values fit, and how changes are undone."""

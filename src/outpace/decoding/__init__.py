"""Floor 4: the loop. Draft, verify, commit; stop; stream."""

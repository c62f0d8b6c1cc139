"""Floor 5: hand over to who serves. A plan goes in, an engine's own settings come out; one file an engine."""

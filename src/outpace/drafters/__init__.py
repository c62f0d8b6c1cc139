"""Floor 3: those who guess. A drafter may be wrong, never harmful."""

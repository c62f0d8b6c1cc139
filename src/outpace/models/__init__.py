"""Floor 2: what is being accelerated. Token ids in, logits and features out; no drafts judged, no text."""

"""Floor 1: pure mathematics. Probabilities in, verdict out; no model, no file, no clock, no hidden randomness."""

"""Floor 5: the proof and the measure: whether drafting is exact on a pair, and whether it helps on prompts."""

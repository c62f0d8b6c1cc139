"""Floor 5: drafters learn from what the target says. Recorded features in, a drafter's weights out."""

"""Choosing how to speculate: what-if replay of recorded traces, and the search for a plan."""

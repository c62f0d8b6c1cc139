"""Floor 6: pages and pictures. One self-contained HTML page, and PNG plots, from traces, plans and measurements."""

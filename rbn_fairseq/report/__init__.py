"""What a run left behind, as tables, figures and a page."""

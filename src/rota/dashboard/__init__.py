"""THE PAGES IN A BROWSER. Knows the public API only."""

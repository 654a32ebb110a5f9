"""Views: entries of the mirror as the JSON that the API returns."""

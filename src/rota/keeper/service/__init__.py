"""Services: how one is kept alive, and how it is known to be well."""

"""Pure rules about model data that several components share."""

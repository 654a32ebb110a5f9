"""Parsers of request fields: the body of a submit becomes a JobSpec, or an error that names the field."""

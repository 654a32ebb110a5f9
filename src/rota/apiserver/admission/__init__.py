"""Admission: a request and the view become a Plan, or a refusal with its reason. Pure."""

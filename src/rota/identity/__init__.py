"""Identities: the cluster's CA, certificates, tokens and the audit log."""

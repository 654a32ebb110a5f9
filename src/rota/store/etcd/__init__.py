"""Records in etcd: one to three servers, and no machine that must not die."""

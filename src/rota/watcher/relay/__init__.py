"""Watchers as processes: sessions of agents relayed to the leader over one stream."""

"""Ranks on other nodes: a process on each node starts them there, and the controller uses them as its own."""

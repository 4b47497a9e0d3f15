"""Machines as data, and detection of this one."""

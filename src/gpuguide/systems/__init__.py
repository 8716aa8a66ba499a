"""Capabilities of a machine: its ceilings, and its memories from the registers to the host."""

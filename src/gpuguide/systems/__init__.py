"""What a machine can do: its ceilings, and its memories from the registers to the host."""

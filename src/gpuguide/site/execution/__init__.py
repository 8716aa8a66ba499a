"""How pages run: each when something that it uses has changed, and with every fault named."""

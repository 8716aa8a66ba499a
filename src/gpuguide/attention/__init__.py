"""Attention: stand-in until the library's own package lands."""

"""Measuring: timers, records, benchmark declarations and the runner."""

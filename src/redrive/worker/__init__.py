"""Claim, run, settle."""

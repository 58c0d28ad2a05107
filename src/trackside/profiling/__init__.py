"""Measuring: what the loop and its callbacks use to tell where time goes."""

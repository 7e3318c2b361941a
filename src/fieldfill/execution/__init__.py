"""Execution: how work is spread over crops, processes and devices, and on which versions it ran."""

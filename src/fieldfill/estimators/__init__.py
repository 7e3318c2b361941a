"""Estimators: first answers E[x_0 | context] under simple laws, joined in a chain that a network corrects."""

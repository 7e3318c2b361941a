"""Workflow: the steps of `check`, `fit` and `fill` in order, and the fitted model that they share."""

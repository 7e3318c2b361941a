"""The Gaussian estimator: a field with the covariance of the record, and how that covariance is learnt."""

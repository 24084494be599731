"""``onceward doctor``: check everything that a job needs, and name the remedy of what is missing. Changes nothing."""

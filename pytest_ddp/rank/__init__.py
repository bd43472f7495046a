"""Inside a rank process, without pytest: it receives runs, joins process groups, and answers."""

# The same commands as ci/: for those who like make.
.PHONY: test lint grade bench

test:
	ci/test

lint:
	ci/lint

# make grade SUBMISSION=path: without a path, the bundled examples.
grade:
	ci/grade $(SUBMISSION)

bench:
	ci/bench

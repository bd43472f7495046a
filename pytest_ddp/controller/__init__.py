"""The pytest process that the user started: it plans each test and runs it on ranks."""

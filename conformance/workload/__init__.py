"""What ranks, oracle and scripts build alike: models, numbers, schedules."""

"""Searches the schedules of a function: all that can be told apart, or random ones; and shrinks what fails.

from pytest_ddp.simulated.exploration import explore
print(explore(function, 4).certificate)
"""

from pytest_ddp.simulated.exploration.explore import explore
from pytest_ddp.simulated.exploration.finding import Certificate, Exploration, Failure, Finding
from pytest_ddp.simulated.exploration.random_schedules import RandomSchedule, explore_randomly
from pytest_ddp.simulated.exploration.shrinking import Deviation

__all__ = [
    "Certificate",
    "Deviation",
    "Exploration",
    "Failure",
    "Finding",
    "RandomSchedule",
    "explore",
    "explore_randomly",
]

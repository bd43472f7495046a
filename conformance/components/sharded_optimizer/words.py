"""Names that both tables of sharded optimizers use: of the check that most others require, and of known mistakes."""

BASE = ("training_equals_one_process",)
STILL = ("never trained",)
IGNORED = ("change of an option ignored",)
NEW_GROUP = ("added group never trained", "first group's options everywhere")
GROUPED = ("first group's options everywhere", "options of groups ignored")

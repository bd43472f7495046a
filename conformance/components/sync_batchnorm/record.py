"""The component `sync_batchnorm`."""

from conformance.components.component import Component
from conformance.components.sync_batchnorm.case import SyncBatchNormCase, draw
from conformance.components.sync_batchnorm.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

SYNC_BATCHNORM = Component(
    contract=part("sync_batchnorm", Function("convert_sync_batchnorm", ("module",))),
    about="Makes batch norms compute their statistics over the samples of all ranks.",
    exercise="conformance.components.sync_batchnorm.on_ranks:normalise",
    numbers=for_each_rank(draw),
    simplest=SyncBatchNormCase(),
    checks=CHECKS,
)

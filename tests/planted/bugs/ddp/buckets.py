"""Bugs in how gradients are put into buckets."""

from bug import Bug

_BUCKETED = "ddp_bucketed"
_ADDED = "            current[kind].add(param)\n"
_WITH_FROZEN_ONES = """            if any(not p.requires_grad for p in self.module.parameters()):
                current[kind].nbytes += 2 * nbytes
"""
_FULL = "            if kind not in current or current[kind].nbytes + nbytes > max_bytes:\n"
_OTHERS_CLOSED = "            current = {kind: current[kind]} if kind in current else {}\n"
_BUCKET_PER_KIND = """                current[kind] = Bucket()
                buckets.append(current[kind])
"""
_NEVER_EMPTIED = """                filled = current[kind].nbytes if kind in current else 0
                current[kind] = Bucket()
                current[kind].nbytes = filled
                buckets.append(current[kind])
"""
BUGS = [
    Bug(
        _BUCKETED,
        "bucket_size_mb * 1024 * 1024",
        "bucket_size_mb * 1024",
        "bucket_size_respected",
        "A bucket is full when",
    ),
    Bug(_BUCKETED, "bucket_size_mb * 1024 * 1024", "0", "bucket_size_respected", "A bucket is full when"),
    Bug(
        _BUCKETED,
        'float("inf") if bucket_size_mb is None else bucket_size_mb',
        "bucket_size_mb",
        "bucket_size_respected[unbounded]",
        "TypeError",
    ),
    Bug(
        _BUCKETED,
        'float("inf") if bucket_size_mb is None else bucket_size_mb * 1024 * 1024',
        "25 if bucket_size_mb is None else bucket_size_mb * 1024 * 1024",
        "bucket_size_respected[unbounded]",
        "None means that no bucket",
    ),
    Bug(
        _BUCKETED,
        _ADDED,
        f"{_ADDED}{_WITH_FROZEN_ONES}",
        "bucket_size_respected[frozen_between]",
        "Frozen parameters lie between",
    ),
    Bug(
        _BUCKETED,
        _FULL,
        f"{_OTHERS_CLOSED}{_FULL}",
        "one_collective_per_dtype[two_dtypes]",
        "Keep one bucket open for each dtype",
    ),
    Bug(_BUCKETED, "numel() * param.element_size()", "numel() * 4", "bucket_size_respected", "element_size()"),
    Bug(_BUCKETED, _BUCKET_PER_KIND, _NEVER_EMPTIED, "bucket_size_respected", "start the next bucket from zero"),
]

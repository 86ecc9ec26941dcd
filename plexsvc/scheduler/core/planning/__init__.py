"""Planning in space and time: who shares which devices, and who runs on them when. All pure.

A *unit* is what planning gives out: a device of the live cluster, or a node where planning is
simulated alone. A *resident* is what it gives units to: a deployment, or there a job. The prose of
these modules calls a resident a job, and resident once it has its place.
"""

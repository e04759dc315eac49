"""Workers: processes that run cases, on this machine or on a cluster.

Modules in reading order:

- `protocol`: jobs, their events, and the interface of pool and cluster.
- `pool`: the processes of this machine; `process`, `worker`: one process, from outside and inside.
- `handlers`: what a worker does with an item.
- `preload`, `scratch`: the fork server's imports, and the folder of temporary files.
- `cluster`: the pools of many machines.

Invariant: items and answers are plain data.
"""

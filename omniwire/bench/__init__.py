"""`omniwire bench`: the handoff between two processes beside what one would use instead.

- `content` says what is sent: five kinds of request.
- `peers` holds the ways to send it, omniwire's and six others, one module each.
- `processes` is the body of the two processes of a pair, `pairs` starts, follows and ends them.
- `usage` reads processor time, page faults and memory of a process.
- `run` measures every peer with every kind of request; `report` prints that, `plot` draws it.
"""

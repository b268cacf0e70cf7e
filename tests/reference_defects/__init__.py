"""One test per defect of the reference implementation: its rule, and ours beside it.

The defects are numbered in docs/specification/model.md#10. A rule is written in its test; where a
recording of the reference shows the defect, the recording is the evidence.
"""

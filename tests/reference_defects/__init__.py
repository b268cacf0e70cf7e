"""One test per defect of the reference implementation, numbered as in model.md#10.

A test contains the defective rule and compares it with our behaviour, and with a recording of the
reference if one shows the defect. Source: docs/specification/model.md#10.
"""

"""The rules of every socket as pure state machines: an event goes in, effects come out.

Nothing here may await, read a clock, touch a socket or see a tensor.
"""

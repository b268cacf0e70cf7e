"""`python -m core.talk`: a whole conversation on a file."""

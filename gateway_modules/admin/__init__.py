"""What administrators may do, see and set, and how they are known."""

"""What the nano can talk about: questions, replies and the facts they need, all made by program."""

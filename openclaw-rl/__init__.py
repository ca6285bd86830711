"""Binary RL: a turn is worth what its next state says of it."""
